"""Every allocation of a loop of one's own with accelerate, the recipes accelerate-ddp and accelerate-fsdp2, against the counted ledger.

Arguments: a part (recorded.py).
"""

import dataclasses
import pathlib
import sys

from events_test import OSS, QLORA, SMALL, TINY, Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from bert_events_test import TINY as TINY_BERT
from gpt2_events_test import SMALL as SMALL_GPT2
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison

LIBRARIES = ["transformers", "torch", "accelerate", "peft", "bitsandbytes"]


@dataclasses.dataclass
class AccelerateCase(Case):
    optimizer: str = "adamw:foreach"

    def job(self):
        return {**super().job(), "modeling": "accelerate"}


# Recorded, too.
FEW = [
    AccelerateCase(**TINY),
    AccelerateCase(**TINY, batch=2, accumulation=2, checkpointing="full", tied=True, optimizer="adamw:fused"),
    AccelerateCase(**{**TINY, "kv_heads": 1}, family="qwen2", precision="bf16-pure", batch=2, accumulation=3, tied=True),
    AccelerateCase(**{**TINY, "kv_heads": 4}, family="qwen3", precision="fp32", batch=3, checkpointing="full"),
    AccelerateCase(**TINY, family="phi3", attention="math", batch=2, clip=False),
    AccelerateCase(**{**TINY, "window": 64}, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    AccelerateCase(**{**TINY, "window": 64}, family="mistral", attention="auto", card="RTX4090", precision="bf16-pure"),
    AccelerateCase(**TINY, family="granite", tied=True, card="A100-80GB", storage="bf16"),
    AccelerateCase(**TINY, precision="fp16-mixed", accumulation=2),
    AccelerateCase(**TINY, ranks=2, sharding="no-shard", checkpointing="full", accumulation=2),
    AccelerateCase(**TINY, ranks=3, sharding="no-shard", family="gemma", tied=True, precision="fp32"),
    AccelerateCase(**TINY, ranks=2, sharding="no-shard", precision="bf16-pure", attention="math", optimizer="adamw:fused"),
    AccelerateCase(**TINY, ranks=2),
    AccelerateCase(**TINY, ranks=7, tied=True, accumulation=4, checkpointing="full"),
    AccelerateCase(**TINY, ranks=4, family="qwen3", precision="bf16-pure", sharding="shard-grad-op", optimizer="adamw:fused"),
    AccelerateCase(**{**TINY, "kv_heads": 4}, ranks=8, precision="fp32", checkpointing="full"),
    AccelerateCase(**{**TINY, "window": 64}, ranks=2, family="gemma3_text", tied=True, attention="math", batch=2),
    AccelerateCase(**TINY, ranks=2, precision="fp16-mixed", checkpointing="full", accumulation=2),
    AccelerateCase(**TINY, lora_rank=4, lora_dropout=0.1, checkpointing="full", optimizer="adamw-8bit:paged"),
    AccelerateCase(**TINY, lora_rank=4, ranks=2, accumulation=2),
    AccelerateCase(**TINY, lora_rank=4, ranks=2, sharding="no-shard", checkpointing="full"),
    AccelerateCase(**{**TINY, "sequence": 640}, **QLORA, ranks=2, checkpointing="full"),
    AccelerateCase(**TINY, optimizer="adamw-8bit"),
    AccelerateCase(**TINY, family="mixtral", optimizer="adamw-8bit:paged"),
    AccelerateCase(**TINY_GPT2, tied=True, ranks=2, checkpointing="full"),
    AccelerateCase(**TINY_BERT, batch=2, accumulation=2),
    AccelerateCase(**TINY, optimizer="adafactor", family="qwen2", checkpointing="full"),
    AccelerateCase(**TINY, optimizer="adafactor", precision="bf16-pure", ranks=2, sharding="no-shard", lora_rank=4),
    AccelerateCase(**TINY, ranks=4, offload="params", family="qwen3", tied=True, precision="bf16-pure", checkpointing="full", clip=False, optimizer="adamw:fused"),
    AccelerateCase(**TINY, ranks=2, offload="params", accumulation=2),
]
MORE = [
    *(AccelerateCase(**TINY, **OSS, ranks=ranks, sharding=sharding, lora_rank=rank) for ranks, sharding, rank in ((1, "full-shard", 0), (2, "no-shard", 4), (2, "full-shard", 4))),
    *(AccelerateCase(**SMALL, precision=precision, tied=tied, checkpointing=checkpointing, accumulation=accumulation)
      for precision, tied, checkpointing, accumulation in (
          ("bf16-mixed", False, "full", 1), ("bf16-mixed", True, "none", 3), ("bf16-pure", False, "full", 2), ("bf16-pure", True, "none", 1), ("fp16-mixed", True, "full", 2))),
    *(AccelerateCase(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=tied, checkpointing=checkpointing, accumulation=accumulation)
      for tied, checkpointing, accumulation in ((True, "full", 2), (False, "none", 1))),
    *(AccelerateCase(**SMALL, family=family, tied=True, checkpointing=checkpointing, attention="auto", card=card, batch=batch)
      for family, checkpointing, card, batch in (("qwen2", "full", "H100-80GB", 1), ("qwen3", "none", "RTX4090", 2), ("phi3", "full", "A100-80GB", 1), ("granite", "none", "H100-80GB", 1), ("gemma", "full", "H100-80GB", 1))),
    AccelerateCase(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", tied=True, attention="auto", batch=2),
    AccelerateCase(**{**SMALL, "layers": 7, "window": 512}, family="gemma3_text", tied=True, attention="auto", checkpointing="full"),
    AccelerateCase(**{**SMALL, "window": 1024}, family="mistral", attention="auto", card="RTX4090"),
    *(AccelerateCase(**{**SMALL, "sequence": 512}, attention="math", precision=precision, batch=2, checkpointing=checkpointing) for precision, checkpointing in (("bf16-mixed", "none"), ("bf16-pure", "full"))),
    *(AccelerateCase(**SMALL, ranks=ranks, sharding="no-shard", precision=precision, checkpointing=checkpointing, accumulation=accumulation, tied=tied)
      for ranks, precision, checkpointing, accumulation, tied in ((2, "bf16-mixed", "none", 3, True), (4, "bf16-mixed", "full", 1, False), (2, "bf16-pure", "none", 1, False), (2, "fp16-mixed", "full", 2, True))),
    *(AccelerateCase(**SMALL, ranks=ranks, precision=precision, checkpointing=checkpointing, accumulation=accumulation, tied=tied, sharding=sharding, optimizer=optimizer)
      for ranks, precision, checkpointing, accumulation, tied, sharding, optimizer in (
          (2, "bf16-mixed", "none", 1, True, "full-shard", "adamw:foreach"), (8, "bf16-mixed", "full", 2, False, "full-shard", "adamw:fused"), (4, "bf16-mixed", "none", 3, False, "shard-grad-op", "adamw:foreach"),
          (3, "bf16-pure", "full", 1, True, "full-shard", "adamw:foreach"), (5, "fp16-mixed", "none", 1, False, "full-shard", "adamw:foreach"))),
    AccelerateCase(**{**SMALL, "kv_heads": 16}, ranks=2, precision="fp32", accumulation=2),
    AccelerateCase(**SMALL, ranks=4, family="qwen2", checkpointing="full", clip=False),
    *(AccelerateCase(**{**SMALL, "sequence": 640}, lora_rank=8, family=family, ranks=ranks, precision=precision, checkpointing=checkpointing, optimizer=optimizer, frozen_dtype=frozen, card=card, attention="auto")
      for family, ranks, precision, checkpointing, optimizer, frozen, card in (
          ("qwen2", 4, "bf16-mixed", "full", "adamw:foreach", "bf16", "H100-80GB"), ("llama", 1, "bf16-pure", "none", "adamw-8bit:paged", "bf16", "H100-80GB"), ("llama", 2, "fp16-mixed", "none", "adamw:fused", "fp16", "T4"))),
    *(AccelerateCase(**{**SMALL, "sequence": 640}, **QLORA, ranks=ranks, checkpointing="full", accumulation=accumulation, optimizer=optimizer)
      for ranks, accumulation, optimizer in ((1, 1, "adamw-8bit:paged"), (2, 2, "adamw:foreach"))),
    *(AccelerateCase(**{**SMALL, "sequence": 640}, family=family, ranks=2, sharding=sharding, precision=precision, checkpointing=checkpointing)
      for family, sharding, precision, checkpointing in (("qwen3_moe", "full-shard", "bf16-mixed", "full"), ("mixtral", "no-shard", "bf16-pure", "none"))),
    *(AccelerateCase(**{**SMALL, "sequence": 640}, optimizer=optimizer, precision=precision, tied=True, ranks=ranks, sharding="no-shard")
      for optimizer, precision, ranks in (("adamw-8bit:paged", "bf16-mixed", 2), ("adamw:paged", "bf16-pure", 1))),
    AccelerateCase(**SMALL_GPT2, tied=True, ranks=2, checkpointing="full", lora_rank=4),
    AccelerateCase(**SMALL_GPT2, tied=True, batch=2, optimizer="adamw-8bit", accumulation=2),
    AccelerateCase(**TINY_BERT, batch=2, accumulation=2, checkpointing="full", ranks=2, sharding="no-shard"),
]


def rehearsed(case, warm):
    """Of one GPU without a launcher."""
    return rehearsed_events(case, warm, "accelerate_train.py", 0 if case.ranks > 1 else None)


ACCELERATE = Comparison(script=pathlib.Path(__file__).resolve(), case_type=AccelerateCase, libraries=LIBRARIES, few=FEW, more=MORE,
                        warm=lambda: libraries("torch", "transformers", "peft", "bitsandbytes", "accelerate"), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(ACCELERATE.run(*sys.argv[1:]))
