"""Every allocation of transformers' Trainer with DeepSpeed's ZeRO-1 and ZeRO-2 against the counted ledger, as events_test.py compares those without DeepSpeed.

`recorded` compares with deepspeed_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
The rank that is rehearsed is the one that keeps most gradients, for which the estimate is. It is found here from the library's own model.
"""

import dataclasses
import sys
import tempfile

from events_test import FOLDER, SMALL, TINY, Case, config_file, counted_events, libraries, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

# Recorded, too. Buckets that hold a part of the gradients, or less than the largest, are those of larger models.
FEW = [
    Case(**TINY, zero=2, ranks=2, bucket=100_000),
    Case(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, checkpointing="full", batch=2, tied=True),
    Case(**TINY, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2"),
    Case(**TINY, zero=2, ranks=1, clip=False),
    Case(**TINY, zero=1, ranks=7, checkpointing="full", family="qwen3"),
    Case(**TINY, zero=2, ranks=64, bucket=500_000, optimizer="adamw:foreach"),
]
MORE = [
    *(Case(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing)
      for zero, ranks, bucket, tied, accumulation, checkpointing in (
          (2, 2, 500_000_000, False, 1, "none"), (2, 8, 20_000_000, True, 2, "full"), (2, 16, 2_000_000, False, 3, "full"), (2, 3, 10_000_000, True, 1, "none"),
          (1, 2, 500_000_000, True, 1, "full"), (1, 8, 20_000_000, False, 3, "none"), (1, 5, 2_000_000, True, 2, "full"), (1, 1, 20_000_000, False, 1, "none")))]
MORE += [Case(**SMALL, zero=2, ranks=4, bucket=20_000_000, family=family, attention="auto", tied=tied, checkpointing="full")
         for family, tied in (("mistral", False), ("qwen3", True), ("phi3", False), ("granite", True))]


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


def rehearsed(case, warm):
    return rehearsed_events(case, warm, "train.py", heaviest_rank(case))


def other_bucket(case):
    return dataclasses.replace(case, bucket=case.bucket - 2)


DEEPSPEED = Comparison(
    path=FOLDER / "deepspeed_events.json", script="deepspeed_events_test.py", libraries=["deepspeed", "transformers", "torch", "accelerate"], few=FEW, more=MORE,
    warm=lambda: libraries("torch", "transformers", "accelerate"), rehearsed=rehearsed, counted=counted_events, changed=other_bucket)


if __name__ == "__main__":
    sys.exit(DEEPSPEED.run(sys.argv[1]))
