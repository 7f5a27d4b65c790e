"""Every allocation of transformers' Trainer with FSDP1, as accelerate sets it up from a YAML file with `fsdp_version: 1`, against the counted ledger.

Arguments: a part (recorded.py).
"""

import dataclasses
import pathlib
import sys

from events_test import OSS, QLORA, SMALL, TINY, Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

LIBRARIES = ["transformers", "torch", "accelerate", "peft", "bitsandbytes"]


@dataclasses.dataclass
class Fsdp1Case(Case):
    ranks: int = 2
    prefetch: str = "pre"
    ahead: bool = False  # forward_prefetch

    def job(self):
        return {**super().job(), "prefetch": f"backward={self.prefetch}{',forward=1' if self.ahead else ''}"}

    def fsdp_version(self):
        return 1


FOUR_BITS = {**QLORA, "frozen_dtype": "bf16"}
PACKED = {**TINY, "sequence": 640, **FOUR_BITS}

# Recorded, too.
FEW = [
    Fsdp1Case(**TINY),
    Fsdp1Case(**TINY, checkpointing="full"),
    Fsdp1Case(**TINY, ranks=4),
    Fsdp1Case(**TINY, ranks=7, tied=True, checkpointing="full", accumulation=3),
    Fsdp1Case(**TINY, ranks=3, sharding="shard-grad-op", accumulation=2, tied=True, optimizer="adamw:foreach"),
    Fsdp1Case(**TINY, family="qwen3", batch=2, precision="bf16-pure", optimizer="adamw:foreach"),
    Fsdp1Case(**{**TINY, "kv_heads": 4}, family="qwen2", precision="fp32", checkpointing="full", accumulation=2),
    Fsdp1Case(**{**TINY, "window": 64}, ranks=3, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    Fsdp1Case(**TINY, family="phi3", batch=2, attention="math", clip=False),
    Fsdp1Case(**TINY, prefetch="post", checkpointing="full", family="granite"),
    Fsdp1Case(**TINY, prefetch="none", sharding="shard-grad-op", family="gemma", tied=True, attention="auto"),
    Fsdp1Case(**{**TINY, "kv_heads": 4}, ranks=3, family="gpt2", tied=True, accumulation=2, attention="auto"),
    Fsdp1Case(**TINY, family="mixtral", ranks=4, checkpointing="full", accumulation=2),
    Fsdp1Case(**TINY, ranks=8, family="mistral", card="RTX4090", checkpointing="full", checkpointed_by="fsdp"),
    Fsdp1Case(**TINY, lora_rank=4),
    Fsdp1Case(**TINY, lora_rank=4, checkpointing="full", prefetch="post", ahead=True),
    Fsdp1Case(**TINY, lora_rank=4, checkpointing="full", sharding="shard-grad-op", accumulation=3, ranks=3),
    Fsdp1Case(**TINY, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, accumulation=2, family="qwen3", tied=True),
    Fsdp1Case(**TINY, lora_rank=4, lora_targets="q_proj,v_proj", precision="bf16-pure", optimizer="adamw:foreach", checkpointing="full", accumulation=2, ranks=7),
    Fsdp1Case(**TINY, offload="params"),
    Fsdp1Case(**TINY, ranks=16, sharding="hybrid-shard", ahead=True),
    Fsdp1Case(**TINY, ranks=16, sharding="hybrid-shard-zero2", lora_rank=4, accumulation=2),
    Fsdp1Case(**TINY, precision="fp16-mixed", optimizer="adamw:foreach", accumulation=2),
    Fsdp1Case(**TINY, precision="fp16-mixed", optimizer="adamw:foreach", lora_rank=4, frozen_dtype="fp16", checkpointing="full", card="T4", attention="auto"),
    # Bases in 4 bits, not prepared by PEFT, whose norms in fp32 FSDP1 wouldn't join with codes.
    Fsdp1Case(**PACKED, checkpointing="full"),
    Fsdp1Case(**PACKED, ranks=3, accumulation=3, family="qwen2", tied=True),
    Fsdp1Case(**{**PACKED, "quantization": "nf4"}, ranks=7, lora_targets="q_proj,v_proj", lora_dropout=0.1, prefetch="post", family="qwen3"),
    Fsdp1Case(**{**PACKED, "frozen_dtype": "fp16"}, precision="fp16-mixed", optimizer="adamw:foreach", checkpointing="full", accumulation=2, card="T4", attention="auto"),
    Fsdp1Case(**PACKED, ranks=16, sharding="hybrid-shard", checkpointing="full", batch=2, family="mistral", ahead=True),
    Fsdp1Case(**{**SMALL, "sequence": 640, **FOUR_BITS}, ranks=4, checkpointing="full", card="RTX4090"),
    Fsdp1Case(**{**SMALL, "sequence": 100, **FOUR_BITS}, ranks=8, accumulation=2, family="granite", card="A100-80GB"),  # few tokens
]
MORE = [
    *(Fsdp1Case(**SMALL, ranks=ranks, checkpointing=checkpointing, tied=tied, accumulation=accumulation, sharding=sharding)
      for ranks, checkpointing, tied, accumulation, sharding in (
          (2, "none", False, 1, "full-shard"), (4, "full", False, 1, "full-shard"), (8, "full", True, 3, "full-shard"), (64, "none", True, 2, "full-shard"), (4, "full", False, 3, "shard-grad-op"))),
    *(Fsdp1Case(**SMALL, ranks=ranks, precision=precision, checkpointing="full", accumulation=accumulation, sharding=sharding, optimizer=optimizer)
      for ranks, precision, accumulation, sharding, optimizer in (
          (2, "bf16-pure", 1, "full-shard", "adamw:fused"), (5, "bf16-pure", 3, "shard-grad-op", "adamw:foreach"))),
    *(Fsdp1Case(**{**SMALL, "kv_heads": 16}, precision="fp32", ranks=ranks, accumulation=accumulation) for ranks, accumulation in ((2, 1), (3, 2))),
    *(Fsdp1Case(**{**SMALL, "sequence": 640}, ranks=ranks, family=family, tied=tied, checkpointing=checkpointing, attention="auto", batch=batch, card=card)
      for ranks, family, tied, checkpointing, batch, card in (
          (2, "qwen2", True, "none", 3, "RTX4090"), (4, "qwen3", False, "full", 1, "H100-80GB"), (2, "gemma", True, "none", 2, "A100-80GB"), (3, "gemma3_text", True, "full", 1, "H100-80GB"),
          (2, "granite", True, "full", 2, "H100-80GB"), (4, "phi3", False, "full", 2, "RTX4090"), (2, "mistral", False, "none", 1, "H100-80GB"))),
    *(Fsdp1Case(**{**TINY, "kv_heads": 4}, ranks=ranks, family="gpt2", tied=tied, precision=precision, checkpointing=checkpointing, batch=3, attention=attention)
      for ranks, tied, precision, checkpointing, attention in ((3, True, "bf16-mixed", "full", "auto"), (2, False, "bf16-pure", "none", "math"))),
    Fsdp1Case(**TINY, family="qwen3_moe", experts=128, chosen=8, dense=(1,), ranks=4, checkpointing="full", accumulation=2),
    *(Fsdp1Case(**TINY, **OSS, precision=precision, ranks=ranks, checkpointing="full") for precision, ranks in (("bf16-mixed", 4), ("bf16-pure", 2))),
    Fsdp1Case(**TINY, family="mixtral", precision="bf16-pure", sharding="shard-grad-op", batch=2, card="RTX4090"),
    *(Fsdp1Case(**SMALL, lora_rank=rank, ranks=ranks, family=family, checkpointing=checkpointing, lora_targets=targets, sharding=sharding, prefetch=prefetch, offload=offload, accumulation=accumulation, attention="auto")
      for rank, ranks, family, checkpointing, targets, sharding, prefetch, offload, accumulation in (
          (16, 8, "llama", "full", "all-linear", "full-shard", "pre", "none", 1), (8, 4, "qwen2", "none", "gate_proj,down_proj", "full-shard", "none", "none", 2),
          (64, 3, "phi3", "full", "all-linear", "shard-grad-op", "pre", "none", 2), (8, 2, "granite", "full", "q_proj,v_proj", "full-shard", "post", "none", 1),
          (16, 16, "gemma", "full", "all-linear", "hybrid-shard", "pre", "none", 1), (16, 2, "mistral", "none", "all-linear", "shard-grad-op", "pre", "none", 3))),
    Fsdp1Case(**{**TINY, "kv_heads": 4}, ranks=3, family="gpt2", tied=True, accumulation=2, attention="auto", lora_rank=4, lora_dropout=0.1),
    Fsdp1Case(**TINY, **OSS, lora_rank=4, ranks=2, checkpointing="full"),
    Fsdp1Case(**{**SMALL, "kv_heads": 16}, precision="fp32", ranks=2, lora_rank=8, checkpointing="full", accumulation=2),
    *(Fsdp1Case(**SMALL, ranks=ranks, offload="params", sharding=sharding, accumulation=accumulation, prefetch=prefetch, optimizer=optimizer, tied=tied)
      for ranks, sharding, accumulation, prefetch, optimizer, tied in (
          (4, "full-shard", 1, "pre", "adamw:fused", False), (16, "hybrid-shard", 1, "post", "adamw:foreach", True), (2, "shard-grad-op", 1, "none", "adamw:fused", False))),
    *(Fsdp1Case(**SMALL, ranks=ranks, sharding=sharding, precision=precision, checkpointing="full", accumulation=accumulation)
      for ranks, sharding, precision, accumulation in ((32, "hybrid-shard", "bf16-mixed", 3), (16, "hybrid-shard-zero2", "bf16-mixed", 2), (16, "hybrid-shard", "bf16-pure", 1))),
    *(Fsdp1Case(**{**SMALL, "sequence": 640}, precision="fp16-mixed", optimizer="adamw:foreach", ranks=ranks, offload=offload, sharding=sharding, lora_rank=rank, frozen_dtype=frozen, card=card, attention="auto")
      for ranks, offload, sharding, rank, frozen, card in (
          (4, "none", "full-shard", 0, "fp16", "T4"), (2, "none", "full-shard", 0, "fp16", "A100-80GB"), (2, "none", "shard-grad-op", 8, "fp32", "H100-80GB"))),
    *(Fsdp1Case(**TINY, ranks=4, prefetch=prefetch, accumulation=accumulation) for prefetch, accumulation in (("none", 1), ("post", 3))),
    Fsdp1Case(**{**TINY, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 1100}, ranks=7, batch=3, family="qwen2", card="RTX4090", attention="auto"),
]


def words_of(case):
    return ["--backward-prefetch", case.prefetch, *(["--forward-prefetch"] if case.ahead else [])]


def rehearsed(case, warm):
    return rehearsed_events(case, warm, more=words_of(case))


def warm():
    return libraries("torch", "transformers", "peft", "accelerate", "bitsandbytes")


FSDP1 = Comparison(script=pathlib.Path(__file__).resolve(), case_type=Fsdp1Case, libraries=LIBRARIES, few=FEW, more=MORE, warm=warm, rehearsed=rehearsed, counted=counted_events,
                   changed=other_precision)


if __name__ == "__main__":
    sys.exit(FSDP1.run(*sys.argv[1:]))
