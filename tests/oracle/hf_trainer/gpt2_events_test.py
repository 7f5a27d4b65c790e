"""Every allocation of transformers' Trainer of GPT-2 against the counted ledger, as events_test.py compares those of other families.

`recorded` compares with gpt2_events.json, which `record` writes; `live` rehearses.
"""

import sys

from events_test import FOLDER, Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from compare_events import failures_of
from recorded import failures_of_recorded, record

RECORDED = FOLDER / "gpt2_events.json"
LIBRARIES = ["transformers", "torch", "accelerate", "peft", "bitsandbytes"]
TINY = {"family": "gpt2", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 192, "vocabulary": 2050, "sequence": 128}
SMALL = {"family": "gpt2", "hidden": 768, "layers": 2, "heads": 12, "kv_heads": 12, "ffn": 3072, "vocabulary": 50257, "sequence": 1024}
NO_DROPOUT = {"dropouts": (0, 0, 0)}

# Recorded, too.
FEW = [
    Case(**TINY, tied=True),
    Case(**TINY, tied=True, batch=2, accumulation=3, checkpointing="full", attention="auto"),
    Case(**TINY, precision="bf16-pure", batch=2, attention="math", optimizer="adamw:foreach"),
    Case(**TINY, precision="fp32", tied=True, checkpointing="full", optimizer="adamw-8bit"),
    Case(**TINY, attention="math", batch=3, tied=True, card="RTX4090"),
    Case(**TINY, **NO_DROPOUT, storage="bf16", card="A100-80GB"),
    Case(**TINY, lora_rank=4, lora_dropout=0.1, checkpointing="full", tied=True),
    Case(**TINY, ranks=2, sharding="no-shard", tied=True, accumulation=2),
    Case(**TINY, ranks=3, tied=True, checkpointing="full"),
]
MORE = []


def main(what):
    if what == "recorded":
        return 1 if failures_of_recorded(RECORDED, lambda fields: Case(**fields), counted_events, other_precision) else 0
    with libraries() as warm:
        rehearsed = lambda case: rehearsed_events(case, warm)
        if what == "record":
            record(RECORDED, "gpt2_events_test.py", LIBRARIES, FEW, rehearsed)
            return 0
        return 1 if failures_of([*FEW, *MORE], rehearsed, counted_events, other_precision) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
