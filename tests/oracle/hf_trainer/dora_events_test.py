"""events_test.py's comparison with PEFT's DoRA: adapters whose rows have magnitudes. Arguments: a part (recorded.py)."""

import dataclasses
import pathlib
import sys

from events_test import QLORA, SMALL, TINY, Case, counted_events, libraries, rehearsed_events
from recorded import Comparison


@dataclasses.dataclass
class DoraCase(Case):
    dora: bool = True

    def more_words(self):
        return ["--dora"] if self.dora else []

    def job(self):
        return super().job() | ({"dora": "on"} if self.dora else {})


WIDE = {**TINY, "sequence": 640}   # enough tokens for products of 4 bits
FEW = [
    DoraCase(**TINY, lora_rank=4),
    DoraCase(**TINY, lora_rank=4, lora_dropout=0.1, checkpointing="full", family="qwen2"),
    DoraCase(**TINY, lora_rank=4, family="qwen2", frozen_dtype="fp32", lora_targets="q_proj,v_proj", accumulation=2),
    DoraCase(**TINY, lora_rank=4, precision="bf16-pure", optimizer="adamw:foreach"),
    DoraCase(**TINY, lora_rank=4, ranks=2, sharding="no-shard", checkpointing="full"),
    DoraCase(**TINY, lora_rank=4, ranks=2, accumulation=2),
    DoraCase(**WIDE, **QLORA, checkpointing="full"),
    DoraCase(**WIDE, **{**QLORA, "frozen_dtype": "bf16"}, lora_dropout=0.1, family="qwen2"),
    DoraCase(**WIDE, **QLORA, ranks=2, checkpointing="full"),
]
MORE = [
    *(DoraCase(**SMALL, lora_rank=16, checkpointing=checkpointing, lora_dropout=dropout) for checkpointing in ("none", "full") for dropout in (0, 0.05)),
    DoraCase(**SMALL, lora_rank=8, family="qwen3", card="RTX4090", batch=2),
    DoraCase(**SMALL, lora_rank=8, family="gemma", tied=True, attention="auto", checkpointing="full"),
    DoraCase(**SMALL, lora_rank=8, precision="fp16-mixed", frozen_dtype="fp16", attention="auto"),
    DoraCase(**{**SMALL, "kv_heads": 16}, lora_rank=8, precision="fp32"),
    *(DoraCase(**SMALL, **QLORA, checkpointing=checkpointing, lora_dropout=dropout, family=family)
      for checkpointing, dropout, family in (("none", 0, "llama"), ("full", 0.05, "qwen2"), ("full", 0, "mistral"))),
    DoraCase(**SMALL, **{**QLORA, "quantization": "nf4"}, accumulation=2, optimizer="adamw-8bit:paged"),
    DoraCase(**SMALL, lora_rank=16, ranks=4, checkpointing="full", lora_dropout=0.1),
    DoraCase(**SMALL, lora_rank=16, ranks=3, precision="bf16-pure"),
    DoraCase(**SMALL, **QLORA, ranks=2, sharding="no-shard", family="qwen2", checkpointing="full"),
    DoraCase(**SMALL, **QLORA, ranks=4, lora_dropout=0.1),
]

DORA = Comparison(
    script=pathlib.Path(__file__).resolve(), case_type=DoraCase, libraries=["transformers", "torch", "accelerate", "peft", "bitsandbytes"], few=FEW, more=MORE,
    warm=libraries, rehearsed=rehearsed_events, counted=counted_events, changed=lambda case: dataclasses.replace(case, dora=False))

if __name__ == "__main__":
    sys.exit(DORA.run(*sys.argv[1:]))
