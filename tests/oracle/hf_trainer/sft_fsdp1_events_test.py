"""Every allocation of TRL's SFTTrainer with FSDP1 against the counted ledger, as fsdp1_events_test.py compares those of transformers' Trainer.

`recorded` compares with sft_fsdp1_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON, as sft_events_test.py does.
"""

import pathlib
import sys

from fsdp1_events_test import FOUR_BITS, PACKED, SMALL, TINY, Fsdp1Case, counted_events, libraries, other_precision, words_of  # which puts the folder above on the path
from events_test import rehearsed_events
from recorded import Comparison
from sft_events_test import LIBRARIES


class SftFsdp1Case(Fsdp1Case):
    def job(self):
        return {**super().job(), "modeling": "trl"}


# Recorded, too.
FEW = [
    SftFsdp1Case(**TINY, checkpointing="full"),
    SftFsdp1Case(**TINY, ranks=4, tied=True, checkpointing="full", accumulation=2, ahead=True),
    SftFsdp1Case(**TINY, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    SftFsdp1Case(**TINY, precision="bf16-pure", family="qwen3"),
    SftFsdp1Case(**TINY, precision="fp16-mixed", optimizer="adamw:foreach", sharding="shard-grad-op", ranks=3),
    # Adapters over 4 bits, which SFTTrainer makes bf16 and accelerate fp32.
    SftFsdp1Case(**PACKED, checkpointing="full"),
    SftFsdp1Case(**PACKED, ranks=3, accumulation=3, family="qwen2", tied=True),
    SftFsdp1Case(**{**PACKED, "frozen_dtype": "fp16"}, precision="fp16-mixed", optimizer="adamw:foreach", checkpointing="full", accumulation=2, card="T4", attention="auto"),
    SftFsdp1Case(**{**PACKED, "quantization": "nf4"}, ranks=7, lora_targets="q_proj,v_proj", lora_dropout=0.1, prefetch="post", family="qwen3"),
]
MORE = [
    *(SftFsdp1Case(**SMALL, ranks=ranks, checkpointing=checkpointing, lora_rank=rank, frozen_dtype="bf16", sharding=sharding, offload=offload, accumulation=accumulation, attention="auto")
      for ranks, checkpointing, rank, sharding, offload, accumulation in (
          (8, "full", 0, "full-shard", "none", 1), (2, "none", 16, "full-shard", "none", 3), (16, "full", 8, "hybrid-shard", "none", 1), (4, "full", 0, "shard-grad-op", "none", 2))),
    SftFsdp1Case(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    SftFsdp1Case(**{**SMALL, "sequence": 640, **FOUR_BITS}, ranks=16, sharding="hybrid-shard", checkpointing="full", batch=2, family="mistral", ahead=True),
    SftFsdp1Case(**{**SMALL, "sequence": 640, **FOUR_BITS}, ranks=4, checkpointing="full", card="RTX4090", accumulation=2),
]


def rehearsed(case, warm):
    return rehearsed_events(case, warm, "sft_train.py", more=words_of(case))


SFT = Comparison(script=pathlib.Path(__file__).resolve(), case_type=SftFsdp1Case, libraries=LIBRARIES, few=FEW, more=MORE, warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events,
                 changed=other_precision, are_optional=True)


if __name__ == "__main__":
    sys.exit(SFT.run(*sys.argv[1:]))
