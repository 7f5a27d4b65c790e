"""Every allocation of transformers' Trainer with torchao's AdamW of 8 and 4 bits against the counted ledger, as events_test.py compares those of other optimizers.

Each rehearsal is done twice, as Inductor times the kernels of an update when it meets them for the first time. Some kernels of large parameters it times in every run, so
that none are here. With FSDP2, numbers of up to 8 bytes are left out: tracing an update of DTensors makes some. Arguments: a part (recorded.py).
"""

import dataclasses
import pathlib
import sys

from events_test import QLORA, TINY, TRAINER, Case

EIGHT, FOUR = {"optimizer": "adamw-8bit:torchao"}, {"optimizer": "adamw-4bit:torchao"}
ROWS_OF_BLOCKS = {**TINY, "hidden": 256}  # as wide as a block

# Recorded, too.
FEW = [
    Case(**TINY, **FOUR, precision="bf16-pure", tied=True, checkpointing="full"),
    Case(**TINY, **EIGHT, ranks=2, sharding="no-shard", accumulation=2),
    Case(**ROWS_OF_BLOCKS, **FOUR, lora_rank=32),
    Case(**ROWS_OF_BLOCKS, **EIGHT, family="qwen2"),
    Case(**TINY, **EIGHT, precision="fp16-mixed", card="T4", attention="auto"),
    Case(**TINY, **FOUR, family="mixtral", card="RTX4090"),
    Case(**TINY, **EIGHT, ranks=2),
    Case(**ROWS_OF_BLOCKS, **FOUR, ranks=2),
    Case(**ROWS_OF_BLOCKS, **EIGHT, ranks=2),
]
MORE = [
    Case(**{**ROWS_OF_BLOCKS, "vocabulary": 9000}, **FOUR, family="qwen3", accumulation=2),
    Case(**{**TINY, "sequence": 640}, **QLORA, **EIGHT, checkpointing="full"),
    Case(**TINY, **FOUR, ranks=3, sharding="no-shard", lora_rank=4),
    Case(**{**TINY, "kv_heads": 1, "ffn": 200, "vocabulary": 2051}, **EIGHT, family="gemma", tied=True, attention="auto"),
    Case(**TINY, **EIGHT, precision="fp32", batch=2),
    Case(**TINY, **FOUR, ranks=4, family="qwen2", tied=True, accumulation=2, checkpointing="full"),
    Case(**{**TINY, "sequence": 640}, **QLORA, **EIGHT, ranks=2),
    Case(**TINY, **EIGHT, ranks=2, precision="fp16-mixed"),
]


def without_numbers(case, events):
    """Of a job with FSDP2."""
    longest = 8 if case.ranks > 1 and case.sharding != "no-shard" else 0
    return events and [event for event in events if event[0] not in "+-" or event[1] > longest]


def rehearsed(case, warm):
    return without_numbers(case, TRAINER.rehearsed(case, warm))


def counted(case):
    return without_numbers(case, TRAINER.counted(case))


def changed(case):
    """Not another precision, in which FSDP2's first update may fail."""
    return dataclasses.replace(case, batch=case.batch + 1)


if __name__ == "__main__":
    COMPARISON = dataclasses.replace(TRAINER, script=pathlib.Path(__file__).resolve(), libraries=[*TRAINER.libraries, "torchao", "triton"], few=FEW, more=MORE, sample=FEW[:1],
                                     rehearsed=rehearsed, counted=counted, changed=changed)
    sys.exit(COMPARISON.run(*sys.argv[1:]))
