"""Every allocation of transformers' Trainer with DeepSpeed and other optimizers than AdamW against the counted ledger, as deepspeed_events_test.py compares those with AdamW.

Arguments: a part (recorded.py), or `random COUNT SEED`, which draws jobs as deepspeed_events_test.py does. They rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON, as that does.
"""

import dataclasses
import random
import sys

from deepspeed_events_test import AT_ONCE, DEEPSPEED, QLORA, SMALL, TINY, ZeroCase, drawn, main  # which puts the folder above on the path
from events_test import FOLDER

OPTIMIZERS = ["adamw-8bit", "adamw-8bit:paged", "adamw:paged", "adafactor", "sgd"]
# Its embeddings and their gradients have more bytes in fp64 and in fp32 than 32 bits address, so that norms are taken in parts.
LARGE = {"hidden": 2048, "layers": 1, "heads": 16, "kv_heads": 4, "ffn": 1024, "vocabulary": 150016, "sequence": 128}
ADAPTERS = {"lora_rank": 8, "checkpointing": "full"}

FEW = [
    *(ZeroCase(**TINY, zero=zero, ranks=ranks, accumulation=accumulation, bucket=30_000, optimizer=optimizer)
      for zero, ranks, accumulation, optimizer in ((1, 3, 2, "adamw-8bit"), (2, 2, 1, "adamw-8bit:paged"), (2, 1, 2, "adamw:paged"), (1, 2, 1, "adafactor"))),
    *(ZeroCase(**SMALL, zero=3, ranks=ranks, optimizer=optimizer, sizes=sizes, bucket=0 if sizes else 500_000_000)
      for ranks, optimizer, sizes in ((4, "adamw-8bit:paged", AT_ONCE), (2, "adamw-8bit", ""), (64, "adamw:paged", ""), (3, "adafactor", "auto"))),
    ZeroCase(**TINY, zero=2, ranks=4, overlap=True, optimizer="adamw-8bit", precision="fp16-mixed", clip=False),
    ZeroCase(**TINY, zero=3, ranks=2, optimizer="adafactor", serial=True, precision="fp16-mixed", tied=True, family="qwen2"),
    ZeroCase(**TINY, **ADAPTERS, zero=2, ranks=2, optimizer="adamw-8bit:paged"),
    ZeroCase(**SMALL, **ADAPTERS, zero=3, ranks=3, optimizer="adafactor", accumulation=2, family="qwen3"),
    ZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=2, checkpointing="full", optimizer="adamw-8bit:paged"),
    *(ZeroCase(**TINY, zero=zero, ranks=ranks, accumulation=accumulation, bucket=30_000, optimizer="sgd", overlap=overlap) for zero, ranks, accumulation, overlap in ((1, 2, 2, False), (2, 3, 1, True))),
    ZeroCase(**SMALL, zero=3, ranks=2, optimizer="sgd", sizes=AT_ONCE, bucket=0, precision="fp16-mixed"),
    ZeroCase(**TINY, **ADAPTERS, zero=3, ranks=4, optimizer="sgd", accumulation=2),
    ZeroCase(**LARGE, zero=2, ranks=1, optimizer="adafactor"),
    ZeroCase(**LARGE, zero=3, ranks=1, optimizer="adamw-8bit"),
    ZeroCase(**LARGE, zero=1, ranks=1),
]


def drawn_with_other_optimizer(seed):
    draw = random.Random(f"deepspeed optimizers {seed}")
    return dataclasses.replace(drawn(seed), optimizer=draw.choice(OPTIMIZERS), offload="none")


OTHERS = dataclasses.replace(DEEPSPEED, script=FOLDER / "deepspeed_optimizers_events_test.py", few=FEW, more=[])

if __name__ == "__main__":
    sys.exit(main(OTHERS, drawn_with_other_optimizer, *sys.argv[1:]))
