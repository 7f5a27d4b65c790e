"""What `vramfit fake-weights` writes is loaded by transformers as any checkpoint: no key is missing or left over, and texts come back.

Usage: fake_weights_test.py [CONFIG...]   (of tests/models; default: all)
"""
import glob
import os
import subprocess
import sys
import tempfile

import transformers

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
MODELS = os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "tests", "models")
TEXT = "Grüße, world: 1 + 1 = 2\n"


def problems_of(path, folder):
    done = subprocess.run([VRAMFIT, "fake-weights", path, folder, "--dtype", "fp32"], capture_output=True, text=True, check=False)
    if done.returncode:
        yield done.stderr.strip()
        return
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    wrong = {name: sorted(map(str, keys)) for name, keys in info.items() if keys}
    if wrong:
        yield f"{wrong}"
    if any(parameter.any() for parameter in model.parameters()):
        yield "a parameter is not zero"


def tokenizer_problems(path, folder):
    subprocess.run([VRAMFIT, "fake-weights", path, folder, "--tokenizer"], capture_output=True, check=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    if len(ids) != len(TEXT.encode()) or tokenizer.decode(ids) != TEXT:
        yield f"{ids} is {tokenizer.decode(ids)!r}"
    if "user: hi" not in tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False):
        yield "no chat template"


def main():
    paths = sys.argv[1:] or sorted(glob.glob(os.path.join(MODELS, "*.json")))
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            problems += [f"{path}: {text}" for text in problems_of(path, os.path.join(folder, str(number)))]
        problems += tokenizer_problems("gpt2", os.path.join(folder, "tokenizer"))
    print("\n".join(problems) or f"{len(paths)} checkpoints of zeros, loaded")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
