"""What --save-full writes is what transformers loads: every tensor, equal logits; it loads back here, and so does what transformers
saves, in one file and in several with an index."""

import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file

import executor
import reference

FAMILIES = ["llama", "qwen3", "gemma", "gemma2", "gpt2", "bert", "phi3"]
FLAGS = {"phi3": ("--master-dtype", "fp16")}   # written as the fp32 numbers that they stand for
LIMIT = 1e-5  # of logits, relative (docs/testing.md)


def loaded(directory, family):
    """transformers' model of the directory; nothing may be missing or left over."""
    kind = reference.model_class(executor.config_of(family))
    attention = "eager" if family == "gemma2" else "sdpa"
    model, info = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention, output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise AssertionError(f"{family}: from_pretrained says {wrong}")
    return model.eval()


def logits_here(family, place, directory, weights):
    """Logits and parameters of a step with a learning rate of 0 from the weights of a folder."""
    run = executor.run(executor.Case(family), reference.Hyper(steps=1, lr=0.0, warmup=0), place.data, weights, directory)
    return run.logits, run.parameters


def check_from_transformers(family, place, directory, ids):
    """What save_pretrained writes loads here: the same parameters, the same logits."""
    model = reference.build(executor.model_path(family), place.state)
    ok = True
    for size in ("1GB", "60KB"):
        folder = os.path.join(directory, f"transformers-{size}")
        model.save_pretrained(folder, max_shard_size=size)
        files = [name for name in os.listdir(folder) if name.endswith(".safetensors")]
        assert (len(files) > 1) == (size == "60KB"), f"{family}: {files}"
        logits, parameters = logits_here(family, place, directory, folder)
        for name, tensor in place.state.items():
            assert torch.equal(parameters[name], tensor), f"{family}: {name} is not what transformers saved"
        with torch.no_grad():
            theirs = model.eval()(ids).logits
        error = ((logits.reshape(theirs.shape) - theirs).norm() / theirs.norm()).item()
        print(f"{family}: {len(files)} files of transformers, logits differ by {error:.1e}")
        ok &= error <= LIMIT
    return ok


def check(family):
    place = executor.Workplace(family)
    train = reference.Hyper(steps=3)
    with tempfile.TemporaryDirectory(prefix="vramfit-full-") as directory:
        full = os.path.join(directory, "full")
        trained = executor.run(executor.Case(family, ranks=2, extra=("--save-full", full, *FLAGS.get(family, ()))), train, place.data, place.weights, directory)
        tensors = load_file(os.path.join(full, "model.safetensors"))
        for name, tensor in trained.parameters.items():
            assert torch.equal(tensors[name], tensor), f"{family}: {name} is not what was trained"
        assert set(tensors) == set(trained.parameters), f"{family}: {set(tensors) ^ set(trained.parameters)}"
        # Back here, with a learning rate of 0: the parameters stay, and the logits are those of the file.
        back, parameters = logits_here(family, place, directory, full)
        for name, tensor in trained.parameters.items():
            assert torch.equal(parameters[name], tensor), f"{family}: {name} changed on the way back"
        case = executor.Case(family)
        ids, _ = executor.rows_of(case, place.data, case.global_rows)
        with torch.no_grad():
            logits = loaded(full, family)(ids).logits
        error = ((back.reshape(logits.shape) - logits).norm() / logits.norm()).item()
        with open(os.path.join(full, "config.json"), encoding="utf-8") as f:
            assert json.load(f)["model_type"] == executor.config_of(family)["model_type"]
        # The comparison must be able to fail: the weights before training are not these.
        before = (reference.build(executor.model_path(family), place.state).eval()(ids).logits.detach() - logits).norm() / logits.norm()
        assert before > 10 * LIMIT, f"{family}: training changed nothing"
        print(f"{family}: {len(tensors)} tensors, logits differ by {error:.1e}")
        return (error <= LIMIT) & check_from_transformers(family, place, directory, ids)


if __name__ == "__main__":
    sys.exit(0 if all([check(family) for family in FAMILIES]) else 1)
