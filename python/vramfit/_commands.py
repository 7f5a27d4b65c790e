"""`vramfit estimate` and `vramfit plan`."""
from __future__ import annotations

import os
from typing import List, Mapping, Optional, Sequence, Union

from vramfit._program import run_json
from vramfit._results import Estimate, Plan

Option = Union[None, bool, int, float, str, "os.PathLike[str]", Sequence[Union[int, str]]]


def flags(options: Mapping[str, Option]) -> List[str]:
    """micro_batch=4 is --micro-batch 4; True is the flag alone, None and False are left out, a sequence is joined by commas."""
    words: List[str] = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
        elif isinstance(value, (list, tuple)):
            words += [flag, ",".join(map(str, value))]
        else:
            words += [flag, str(value)]
    return words


def estimate(model: Union[str, "os.PathLike[str]"], *, gpus: str, **options: Option) -> Estimate:
    """Memory that a training job needs per GPU.

    `model` is a name of the catalog, a Hugging Face id, or a folder with a config.json; `gpus` is [NODESx]COUNTxCARD, such as
    "8xH100-80GB". `options` are the flags of `vramfit estimate` (see `vramfit estimate --help`). That it does not fit is an answer.
    Raises InputError, ModelError, or VramfitError.
    """
    return Estimate(run_json(["estimate", str(model), "--gpus", gpus, *flags(options), "--json"]))


def plan(model: Union[str, "os.PathLike[str]"], *, gpus: str, output: Optional[str] = None, **options: Option) -> Plan:
    """The fastest setup of a job that fits, and what it needs; if none fits, the verdict is "no_plan".

    `output` is a file for the plan, which `vramfit run` and `vramfit compare` take. `options` are the flags of `vramfit plan`.
    Raises InputError, ModelError, or VramfitError.
    """
    return Plan(run_json(["plan", str(model), "--gpus", gpus, *flags({"output": output, **options}), "--json"]))
