"""Host memory that loading takes, as it is counted, against what processes of the real libraries took in rehearsals.

Of two models that differ in their number of layers: what a parameter more takes on each rank, which leaves out what libraries themselves take. Arguments: recorded (compares
what is counted with the file), record (rehearses, and writes it), live (rehearses, and compares).
"""

import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))
from recorded import SKIPPED, installed  # noqa: E402

PROGRAM = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin")) / "vramfit"
RECORD = FOLDER / "host_loading.json"
LAYERS = (4, 16)
SHAPE = {"vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 2048,
         "tie_word_embeddings": False}
FP32_LOADED = ["--storage-dtype", "fp32"]
BF16_LOADED = ["--storage-dtype", "bf16", "--state-dtype", "bf16"]
ADAPTERS = ["--lora-rank", "64"]
# Python's objects and the pieces in which its heap grows; and contents of what phantom GPUs keep, which is what is at most 1 MiB.
TOLERANCE = 0.15  # bytes for each parameter
SHARE = 0.05  # of what is there


@dataclasses.dataclass
class Case:
    name: str
    gpus: str
    words: list  # of the script
    flags: list  # of the estimate
    libraries: tuple = ()


CASES = [
    Case("one GPU, in the file's type", "1xH100-80GB", [], ["--stack", "transformers", *BF16_LOADED]),
    Case("one GPU, in fp32", "1xH100-80GB", ["--dtype", "float32"], ["--stack", "transformers", *FP32_LOADED]),
    Case("FSDP2", "2xH100-80GB", ["--fsdp", "plain"], ["--stack", "transformers"]),
    Case("FSDP2, cpu_ram_efficient_loading", "2xH100-80GB", ["--fsdp", "efficient"], ["--stack", "accelerate"]),
    Case("FSDP2, cpu_offload", "2xH100-80GB", ["--fsdp", "offload"], ["--stack", "transformers", "--offload", "params"]),
    Case("FSDP2, LoRA", "2xH100-80GB", ["--fsdp", "plain", "--method", "lora"], ["--stack", "transformers", "--method", "lora", *ADAPTERS]),
    Case("FSDP2, QLoRA", "2xH100-80GB", ["--fsdp", "plain", "--method", "qlora"],
         ["--stack", "transformers", "--method", "qlora", "--frozen-dtype", "bf16", *ADAPTERS]),
    Case("ZeRO-2", "2xH100-80GB", ["--zero", "2"], ["--stack", "deepspeed", "--sharding", "shard-grad-op"], ("deepspeed",)),
]


def config_of(layers):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "torch_dtype": "bfloat16", **SHAPE}


def parameters_of(layers):
    hidden, ffn, kv = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["hidden_size"] // 4
    return layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * ffn + 2 * hidden) + 2 * SHAPE["vocab_size"] * hidden + hidden


def slope(bytes_of):
    """Of what `bytes_of` gives for a number of layers."""
    few, many = LAYERS
    return (bytes_of(many) - bytes_of(few)) / (parameters_of(many) - parameters_of(few))


def counted(case, folder):
    def bytes_of(layers):
        path = folder / f"{layers}.json"
        path.write_text(json.dumps(config_of(layers)), encoding="utf-8")
        done = subprocess.run([PROGRAM, "estimate", path, "--gpus", case.gpus, "--seq-len", "64", "--json", *case.flags], capture_output=True, text=True, check=False)
        if not done.stdout:
            raise RuntimeError(done.stderr)
        loads = [phase for phase in json.loads(done.stdout)["ranks"][0]["phases"] if phase["phase"] == "load"]
        return loads[0].get("host_bytes", 0)
    return slope(bytes_of)


def write_checkpoint(folder, layers):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    path = folder / f"checkpoint-{layers}"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config_of(layers)), encoding="utf-8")
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path), dtype=torch.bfloat16).save_pretrained(path, max_shard_size="100MB")
    return path


def rehearsed(case, checkpoints, folder):
    """For each rank."""
    ranks = int(case.gpus.split("x")[0])

    def bytes_of(rank):
        return slope(lambda layers: json.loads((folder / f"{layers}" / f"rank{rank}.json").read_text(encoding="utf-8")))
    for layers, checkpoint in checkpoints.items():
        out = folder / f"{layers}"
        out.mkdir()
        launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *launcher, FOLDER / "host_loading_train.py", "--checkpoint", checkpoint, "--out", out, *case.words]
        # Freed tensors go back to the system at once.
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
        done = subprocess.run([PROGRAM, "rehearse", "--gpus", case.gpus, "--json", "--", *command], capture_output=True, text=True, check=False, env=environment)
        if not (out / "rank0.json").exists():
            raise RuntimeError(f"{case.name}: {done.stderr[-2000:]}")
    return [round(bytes_of(rank), 3) for rank in range(ranks)]


def is_near(counted_slope, measured):
    return abs(counted_slope - measured) <= TOLERANCE + SHARE * measured


def compare(slopes):
    """Of measured slopes by case; says what differs."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if case.name not in slopes:
                continue
            predicted = counted(case, pathlib.Path(folder))
            print(f"{case.name}: {predicted:.3f} bytes a parameter counted, {slopes[case.name]} taken")
            failures += not all(is_near(predicted, measured) for measured in slopes[case.name])
    return failures


def rehearse_all(cases):
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        checkpoints = {layers: write_checkpoint(folder, layers) for layers in LAYERS}
        for number, case in enumerate(cases):
            (folder / f"case{number}").mkdir()
            found[case.name] = rehearsed(case, checkpoints, folder / f"case{number}")
            print(case.name, found[case.name], flush=True)
    return found


def main(part):
    if part == "recorded":
        slopes = json.loads(RECORD.read_text(encoding="utf-8"))["bytes_per_parameter"]
        if set(slopes) != {case.name for case in CASES}:
            print("the file has other cases than this test: record it")
            return 1
        return 1 if compare(slopes) else 0
    able = [case for case in CASES if all(installed(library) for library in case.libraries)]
    slopes = rehearse_all(able)
    if part == "live":
        return 1 if compare(slopes) else 0
    known = {name: installed(name) for name in ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "deepspeed")}
    found = {"recorded": datetime.date.today().isoformat(), "libraries": {k: v for k, v in known.items() if v}, "bytes_per_parameter": slopes}
    RECORD.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if len(able) == len(CASES) else SKIPPED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
