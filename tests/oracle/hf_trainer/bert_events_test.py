"""Every allocation of transformers' Trainer of BERT (BertForMaskedLM) against the counted ledger, as events_test.py compares those of other families.

Arguments: a part (recorded.py).
"""

import pathlib
import sys

from events_test import Case
from family_parts import run_part

TINY = {"family": "bert", "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 192, "vocabulary": 2050, "sequence": 128, "activation": "gelu", "tied": True}
BASE = {"family": "bert", "hidden": 768, "layers": 2, "heads": 12, "kv_heads": 12, "ffn": 3072, "vocabulary": 30522, "sequence": 512, "activation": "gelu", "tied": True}
NO_DROPOUT = {"dropouts": (0, 0, 0)}

# Recorded, too.
FEW = [
    Case(**TINY),
    Case(**TINY, batch=2, accumulation=3, checkpointing="full", attention="auto"),
    Case(**TINY, precision="bf16-pure", batch=2, attention="math", optimizer="adamw:foreach"),
    Case(**TINY, precision="fp32", checkpointing="full", optimizer="adamw-8bit"),
    Case(**TINY, attention="math", batch=3, card="RTX4090"),
    Case(**TINY, **NO_DROPOUT, storage="bf16", card="A100-80GB", positions=512),
    Case(**TINY, precision="fp16-mixed", card="T4", attention="auto", accumulation=2),
    Case(**TINY, lora_rank=4, lora_dropout=0.1, checkpointing="full"),
    Case(**TINY, ranks=2, sharding="no-shard", accumulation=2),
]
MORE = [
    Case(**TINY, ranks=3, sharding="no-shard", checkpointing="full"),  # whose buckets are made anew within the second step
    *(Case(**BASE, precision=precision, checkpointing=checkpointing, batch=batch, card=card, attention=attention)
      for precision, checkpointing, batch, card, attention in (
          ("bf16-mixed", "none", 16, "A100-80GB", "auto"), ("bf16-mixed", "full", 8, "RTX4090", "auto"), ("bf16-mixed", "none", 3, "H100-80GB", "auto"), ("bf16-mixed", "full", 2, "H100-80GB", "math"),
          ("bf16-pure", "none", 8, "RTX4090", "auto"), ("bf16-pure", "full", 2, "A100-80GB", "math"), ("fp32", "none", 8, "A100-80GB", "auto"), ("fp32", "full", 2, "RTX4090", "auto"), ("fp32", "none", 1, "H100-80GB", "math"))),
    *(Case(**BASE, precision="fp16-mixed", card=card, attention="auto", batch=8, checkpointing=checkpointing) for card, checkpointing in (("T4", "none"), ("H100-80GB", "full"))),
    *(Case(**{**TINY, "activation": activation}, dropouts=dropouts, accumulation=2) for activation, dropouts in (("gelu_new", (0, 0, 0.1)), ("gelu_pytorch_tanh", (0, 0.1, 0)), ("silu", (0, 0.1, 0.1)))),
    *(Case(**{**TINY, "heads": 1, "kv_heads": 1}, batch=batch, attention=attention) for batch, attention in ((1, "math"), (2, "math"), (2, "flash"))),
    Case(**{**TINY, "sequence": 4000, "hidden": 32, "ffn": 96}, batch=17, card="RTX4090"),  # norms' sums by blocks of rows, and a mask that several blocks of threads look at
    Case(**TINY, storage="bf16", accumulation=2, batch=2, attention="math", positions=512),
    *(Case(**BASE, lora_rank=8, lora_targets=targets, precision=precision, checkpointing=checkpointing, batch=2)
      for targets, precision, checkpointing in (("all-linear", "bf16-mixed", "none"), ("query,value", "bf16-mixed", "full"), ("output.dense", "bf16-pure", "none"), ("all-linear", "fp32", "full"))),
    *(Case(**BASE, ranks=ranks, sharding="no-shard", checkpointing=checkpointing, accumulation=accumulation, attention="auto", lora_rank=rank)
      for ranks, checkpointing, accumulation, rank in ((8, "full", 1, 0), (2, "none", 3, 0), (2, "none", 2, 8))),
    *(Case(**TINY, optimizer=optimizer) for optimizer in ("adafactor", "adamw-8bit:paged", "adamw:paged")),
]


if __name__ == "__main__":
    sys.exit(run_part(sys.argv[1], pathlib.Path(__file__).resolve(), FEW, MORE, *sys.argv[2:]))
