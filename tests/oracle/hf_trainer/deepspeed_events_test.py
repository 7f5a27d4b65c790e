"""Every allocation of transformers' Trainer with DeepSpeed's ZeRO-1, ZeRO-2 and ZeRO-3 against the counted ledger, as events_test.py compares those without DeepSpeed.

`recorded` compares with deepspeed_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
The rank that is rehearsed is the one that keeps most gradients, for which the estimate is. It is found here from the library's own model. With ZeRO-3 all ranks allocate the same.
"""

import dataclasses
import importlib.util
import os
import sys
import tempfile

from events_test import FOLDER, PROGRAMS, SMALL, TINY, Case, config_file, counted_events, rehearsed_events  # which puts the folder above on the path
from compare_events import failures_of
from recorded import failures_of_recorded, record
from sft_events_test import SKIPPED
import vramfit

RECORDED = FOLDER / "deepspeed_events.json"
LIBRARIES = ["deepspeed", "transformers", "torch", "accelerate"]

# Recorded, too; the last one has another bucket in each step, which ZeRO-3 makes in loading. Buckets that hold a part of the gradients, or less than the largest, are those of larger models.
FEW = [
    Case(**TINY, zero=2, ranks=2, bucket=100_000),
    Case(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, checkpointing="full", batch=2, tied=True),
    Case(**TINY, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2"),
    Case(**TINY, zero=2, ranks=1, clip=False),
    Case(**TINY, zero=1, ranks=7, checkpointing="full", family="qwen3"),
    # Of TINY the embedding and the output layer come and go, and all else stays whole; of SMALL, norms and biases stay.
    Case(**TINY, zero=3, ranks=4),
    Case(**TINY, zero=3, ranks=2, checkpointing="full"),
    *(Case(**SMALL, zero=3, ranks=ranks, checkpointing=checkpointing) for ranks, checkpointing in ((1, "none"), (2, "none"), (8, "full"), (64, "none"))),
    Case(**SMALL, zero=3, ranks=4, accumulation=3, bucket=5_000_000),
    Case(**SMALL, zero=3, ranks=3, accumulation=2, checkpointing="full", tied=True, family="qwen2"),
    Case(**SMALL, zero=3, ranks=2, tied=True, family="qwen3"),
    Case(**TINY, zero=2, ranks=64, bucket=500_000, optimizer="adamw:foreach"),
]
MORE = [
    *(Case(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing)
      for zero, ranks, bucket, tied, accumulation, checkpointing in (
          (2, 2, 500_000_000, False, 1, "none"), (2, 8, 20_000_000, True, 2, "full"), (2, 16, 2_000_000, False, 3, "full"), (2, 3, 10_000_000, True, 1, "none"),
          (1, 2, 500_000_000, True, 1, "full"), (1, 8, 20_000_000, False, 3, "none"), (1, 5, 2_000_000, True, 2, "full"), (1, 1, 20_000_000, False, 1, "none")))]
WIDE = {**TINY, "hidden": 512, "heads": 8, "ffn": 1024}
MORE += [
    Case(**WIDE, zero=3, ranks=3, accumulation=5, tied=True, family="mistral"),
    Case(**WIDE, zero=3, ranks=64, checkpointing="full", accumulation=2, optimizer="adamw:foreach", family="qwen3"),
    Case(**WIDE, zero=3, ranks=1, clip=False, accumulation=2, batch=2),
    *(Case(**SMALL, zero=3, ranks=ranks, tied=tied, bucket=bucket, accumulation=accumulation, checkpointing=checkpointing, attention="auto")
      for ranks, tied, bucket, accumulation, checkpointing in (
          (8, True, 20_000_000, 2, "full"), (16, False, 500_000_000, 4, "none"), (7, True, 2_000_000, 4, "full"), (1, False, 500_000_000, 3, "full")))]
MORE += [Case(**SMALL, zero=2, ranks=4, bucket=20_000_000, family=family, attention="auto", tied=tied, checkpointing="full")
         for family, tied in (("mistral", False), ("qwen3", True), ("phi3", False), ("granite", True))]


def with_libraries():
    """Whether they are there, in the Python that is to have them."""
    python = os.environ.get("VRAMFIT_RECIPES_PYTHON")
    if python and os.environ.get("VRAMFIT_DEEPSPEED_STARTED") != "1":
        os.execve(python, [python, *sys.argv], {**os.environ, "VRAMFIT_DEEPSPEED_STARTED": "1"})
    return all(importlib.util.find_spec(name) for name in LIBRARIES)


def warm():
    os.environ |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "VRAMFIT_PROGRAM": str(PROGRAMS / "vramfit")}
    return vramfit.Warm("torch", "transformers", "accelerate")


def groups_of(case):
    """Numbers of elements of the parameters, in the optimizer's two groups."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(config_file(case, folder)))
        model.tie_weights()
    return [[p.numel() for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (True, False)]


def heaviest_rank(case):
    """The one whose partitions touch the most parameters, each counted whole."""
    kept = [0] * case.ranks
    for sizes in groups_of(case):
        part = 2 * -(-sum(sizes) // (2 * case.ranks))
        begin = 0
        for size in sizes:
            for rank in range(begin // part, (begin + size - 1) // part + 1):
                kept[rank] += size
            begin += size
    return kept.index(max(kept))


def rehearsed(case, libraries):
    return rehearsed_events(case, libraries, "train.py", 0 if case.zero == 3 else heaviest_rank(case))


def other_bucket(case):
    return dataclasses.replace(case, bucket=case.bucket - 2)


def main(what):
    if what == "recorded":
        return 1 if failures_of_recorded(RECORDED, lambda fields: Case(**fields), counted_events, other_bucket) else 0
    if not with_libraries():
        print(f"skipped: {sys.executable} lacks some of {', '.join(LIBRARIES)}")
        return SKIPPED
    if what == "record":
        with warm() as libraries:
            record(RECORDED, "deepspeed_events_test.py", LIBRARIES, FEW, lambda case: rehearsed(case, libraries))
        return 0
    cases = FEW if what == "few" else [*FEW, *MORE]
    with warm() as libraries:
        return 1 if failures_of(cases, lambda case: rehearsed(case, libraries), counted_events, other_bucket) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
