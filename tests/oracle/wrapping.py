"""Compares the units of --wrap size:N with PyTorch's own size_based_auto_wrap_policy on transformers' meta-device models."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy  # noqa: E402

SIZES = [1, 64, 128, 2000, 4096, 4097, 6000, 6145, 9000, 12000, 12417, 16000, 18000, 18433, 19000, 20000, 25000, 31000,
         37313, 60000, 10**6]
# A parameter that two modules share counts for both in PyTorch's policy (FSDP then flattens it once and misses it the
# second time); here it counts where its one name is.
COUNTED_TWICE = {("bert", "cls.predictions.bias")}
MODELS = ["llama", "qwen3", "phi3", "gpt2", "gemma", "gemma2", "gemma3_text", "mistral", "qwen2", "bert"]


class Unit(torch.nn.Module):
    """What FSDP would be: a wrapper that holds a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def build(config):
    arguments = {key: value for key, value in config.items() if key != "architectures"}
    with torch.device("meta"):
        return getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**arguments))


def torch_units(config, least):
    """Parameter to the module that PyTorch's policy wraps around it, innermost; "root" for the rest."""
    model = build(config)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    paths = {id(module): name for name, module in model.named_modules()}
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(model, auto_wrap_policy=policy, wrapper_cls=Unit, ignored_modules=set(), ignored_params=set(),
                    only_wrap_children=True)
    found = {}

    def walk(module, unit):
        if isinstance(module, Unit):
            unit, module = paths[id(module.module)], module.module
        for parameter in module._parameters.values():
            if parameter is not None:
                found.setdefault(names[id(parameter)], unit)
        for child in module.children():
            walk(child, unit)

    walk(model, "root")
    return found


def our_units(program, path, sizes):
    output = subprocess.run([program, path, *[f"size:{n}" for n in sizes]], check=True, capture_output=True, text=True)
    units, found = {}, {}
    for line in output.stdout.splitlines():
        if line.startswith("== size:"):
            units = found.setdefault(int(line[8:]), {})
        else:
            name, unit = line.split(" ")
            units[name] = unit
    return found


def main():
    program = Path(os.environ["VRAMFIT_BIN_DIR"]) / "dump_units"
    models = Path(os.environ["VRAMFIT_SOURCE_DIR"]) / "tests" / "models"
    compared = failures = several = 0
    for model in MODELS:
        path = models / f"{model}.json"
        config = json.loads(path.read_text())
        ours = our_units(program, path, SIZES)
        for least in SIZES:
            theirs = torch_units(config, least)
            compared += len(theirs)
            several += len(set(theirs.values())) > 1
            for name, unit in theirs.items():
                if ours[least].get(name) != unit and (model, name) not in COUNTED_TWICE:
                    failures += 1
                    print(f"{model} size:{least} {name}: PyTorch {unit}, here {ours[least].get(name)}")
    print(f"{compared} parameters compared, {several} wrappings of more than one unit, {failures} differ")
    return 1 if failures or several < len(MODELS) * 5 else 0


if __name__ == "__main__":
    sys.exit(main())
