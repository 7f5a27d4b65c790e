"""Every allocation of transformers' Trainer of GPT-2 against the counted ledger, as events_test.py compares those of other families.

Arguments: a part (recorded.py).
"""

import pathlib
import sys

from events_test import QLORA, Case
from family_parts import run_part

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
    Case(**TINY, lora_rank=4, precision="fp16-mixed", frozen_dtype="fp16", attention="math"),
    Case(**TINY, ranks=2, sharding="no-shard", tied=True, accumulation=2),
    Case(**TINY, ranks=3, tied=True, checkpointing="full"),
    Case(**{**TINY, "sequence": 640}, **QLORA, tied=True),
]
MORE = [
    *(Case(**SMALL, tied=True, precision=precision, checkpointing=checkpointing, batch=batch, card=card, attention=attention)
      for precision, checkpointing, batch, card, attention in (
          ("bf16-mixed", "none", 4, "A100-80GB", "auto"), ("bf16-mixed", "full", 4, "RTX4090", "auto"), ("bf16-mixed", "none", 3, "H100-80GB", "auto"), ("bf16-mixed", "full", 2, "H100-80GB", "math"),
          ("bf16-pure", "none", 2, "RTX4090", "auto"), ("bf16-pure", "full", 2, "A100-80GB", "math"), ("fp32", "none", 2, "A100-80GB", "auto"), ("fp32", "full", 2, "RTX4090", "auto"), ("fp32", "none", 1, "H100-80GB", "math"))),
    *(Case(**{**SMALL, "hidden": width, "heads": 4, "kv_heads": 4, "sequence": 512}, precision="fp32", card=card, batch=2) for width in (320, 512, 1024) for card in ("A100-80GB", "RTX4090")),
    *(Case(**{**TINY, "hidden": 4 * head_dim}, batch=2, attention="auto", card="H100-80GB") for head_dim in (96, 128, 256)),
    *(Case(**TINY, activation=activation, dropouts=dropouts, accumulation=2) for activation, dropouts in (("gelu_pytorch_tanh", (0, 0, 0.1)), ("gelu", (0.1, 0, 0)))),
    *(Case(**{**TINY, "heads": 1, "kv_heads": 1}, batch=2, attention=attention) for attention in ("flash", "math")),
    *(Case(**{**TINY, "sequence": 4000, "hidden": 32, "ffn": 96}, batch=17, precision=precision, card=card) for precision, card in (("bf16-mixed", "H100-80GB"), ("bf16-pure", "RTX4090"))),  # norms' sums by blocks of rows
    *(Case(**TINY, storage="bf16", tied=True, accumulation=2, batch=2, attention=attention) for attention in ("auto", "math")),
    *(Case(**SMALL, tied=True, lora_rank=8, lora_targets=targets, precision=precision, checkpointing=checkpointing)
      for targets, precision, checkpointing in (("all-linear", "bf16-mixed", "none"), ("c_attn", "bf16-mixed", "full"), ("mlp.c_proj", "bf16-pure", "none"), ("all-linear", "fp32", "full"))),
    *(Case(**SMALL, tied=tied, ranks=ranks, sharding=sharding, checkpointing=checkpointing, accumulation=accumulation, attention="auto")
      for tied, ranks, sharding, checkpointing, accumulation in (
          (True, 8, "full-shard", "full", 1), (False, 2, "shard-grad-op", "none", 3), (True, 64, "full-shard", "none", 2), (True, 2, "no-shard", "full", 2), (False, 4, "no-shard", "none", 1))),
    *(Case(**TINY, ranks=2, precision=precision, checkpointing=checkpointing) for precision, checkpointing in (("bf16-pure", "none"), ("fp32", "full"))),
    *(Case(**TINY, ranks=2, lora_rank=4, tied=tied, checkpointing=checkpointing) for tied, checkpointing in ((False, "full"), (True, "none"))),
    *(Case(**TINY, ranks=4, offload="params", tied=tied) for tied in (True, False)),
    *(Case(**SMALL, **QLORA, tied=True, ranks=ranks, checkpointing=checkpointing) for ranks, checkpointing in ((1, "full"), (2, "none"))),
    *(Case(**TINY, tied=True, optimizer=optimizer) for optimizer in ("adafactor", "adamw-8bit:paged", "adamw:paged")),
]


if __name__ == "__main__":
    sys.exit(run_part(sys.argv[1], pathlib.Path(__file__).resolve(), FEW, MORE, *sys.argv[2:]))
