"""Every allocation of TRL's SFTTrainer against the counted ledger, as events_test.py compares those of transformers' Trainer.

`recorded` compares with sft_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
"""

import dataclasses
import sys

from events_test import FOLDER, QLORA, SMALL, TINY, Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from gpt2_events_test import SMALL as SMALL_GPT2
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison

LIBRARIES = ["trl", "transformers", "torch", "accelerate", "peft", "bitsandbytes", "datasets"]


@dataclasses.dataclass
class SftCase(Case):
    def job(self):
        return {**super().job(), "modeling": "trl"}


# Recorded, too.
FEW = [
    SftCase(**TINY, checkpointing="full"),
    SftCase(**TINY, batch=2, accumulation=3, tied=True),
    SftCase(**TINY, precision="fp32", family="qwen3", checkpointing="full", optimizer="adamw:foreach"),
    SftCase(**{**TINY, "sequence": 2400}, precision="bf16-pure", batch=2, tied=True, checkpointing="full"),
    SftCase(**TINY, lora_rank=4, lora_dropout=0.1, frozen_dtype="fp32", checkpointing="full"),
    SftCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    SftCase(**TINY, ranks=3, sharding="no-shard", accumulation=2),
    SftCase(**TINY, ranks=4, tied=True, checkpointing="full", accumulation=2),
    SftCase(**TINY, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    SftCase(**TINY, precision="fp16-mixed", ranks=2, accumulation=2),
    SftCase(**{**TINY, "sequence": 640}, **QLORA, checkpointing="full"),
    SftCase(**{**TINY, "sequence": 640}, **QLORA, family="qwen2", ranks=2, checkpointing="full"),
    SftCase(**TINY_GPT2, tied=True, checkpointing="full"),
    SftCase(**TINY, optimizer="adamw-8bit:torchao"),
]
MORE = [
    *(SftCase(**SMALL, precision=precision, tied=tied, checkpointing=checkpointing, accumulation=accumulation)
      for precision, tied, checkpointing, accumulation in (("bf16-mixed", False, "full", 1), ("bf16-mixed", True, "none", 3), ("bf16-pure", False, "full", 2), ("bf16-pure", True, "none", 1))),
    SftCase(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    SftCase(**{**SMALL, "vocabulary": 70001}, storage="bf16", family="qwen2", batch=3, checkpointing="full"),
    *(SftCase(**{**SMALL, "layers": 1, "sequence": sequence}, batch=batch, card=card, attention="auto")
      for sequence, batch, card in ((1000, 1, "A100-80GB"), (2306, 1, "RTX4090"), (2049, 2, "B200"), (2049, 3, "RTX3090"), (1024, 40, "A100-80GB"), (4096, 18, "RTX5090"), (4096, 33, "H100-80GB"))),
    SftCase(**SMALL, family="granite", tied=True, checkpointing="full"),
    SftCase(**SMALL, family="phi3", optimizer="adamw-8bit", checkpointing="full"),
    SftCase(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", tied=True, batch=2, checkpointing="full", attention="auto"),
    SftCase(**{**SMALL, "window": 512, "layers": 7}, family="gemma3_text", tied=True, attention="auto", checkpointing="full", optimizer="adafactor"),
    *(SftCase(**SMALL, lora_rank=16, frozen_dtype=frozen, checkpointing=checkpointing, tied=True) for frozen, checkpointing in (("fp32", "none"), ("bf16", "full"))),
    SftCase(**{**SMALL, "kv_heads": 16}, lora_rank=8, precision="fp32", lora_targets="q_proj,v_proj", accumulation=3, batch=2),
    *(SftCase(**{**SMALL, "sequence": 640}, **{**QLORA, "frozen_dtype": frozen}, family=family, ranks=ranks, tied=tied, offload=offload, optimizer=optimizer, accumulation=accumulation, sharding=sharding)
      for frozen, family, ranks, tied, offload, optimizer, accumulation, sharding in (
          ("fp32", "qwen2", 1, False, "none", "adamw-8bit:paged", 1, "full-shard"), ("fp32", "gemma", 2, True, "none", "adamw:fused", 2, "full-shard"),
          ("bf16", "llama", 4, True, "params", "adamw:fused", 1, "full-shard"), ("bf16", "qwen3", 2, False, "none", "adamw:foreach", 1, "no-shard"))),
    *(SftCase(**{**SMALL, "sequence": 640}, precision="fp16-mixed", family=family, optimizer=optimizer, ranks=ranks, offload=offload, lora_rank=rank, frozen_dtype="fp32")
      for family, optimizer, ranks, offload, rank in (("granite", "adamw-8bit", 1, "none", 0), ("llama", "adamw:fused", 2, "params", 0), ("llama", "adamw:fused", 2, "none", 8))),
    SftCase(**SMALL_GPT2, tied=True, batch=2, checkpointing="full", accumulation=2),
    SftCase(**SMALL_GPT2, **QLORA, tied=True, ranks=2, checkpointing="full"),
    SftCase(**TINY_GPT2, precision="bf16-pure", tied=True, attention="math"),
    *(SftCase(**TINY_GPT2, ranks=2, sharding=sharding, lora_rank=rank, frozen_dtype="fp32") for sharding, rank in (("full-shard", 4), ("no-shard", 0))),
    SftCase(**SMALL, ranks=4, sharding="no-shard", checkpointing="full", tied=True),
    SftCase(**SMALL, ranks=2, sharding="no-shard", precision="bf16-pure", accumulation=3),
    SftCase(**SMALL, ranks=2, sharding="no-shard", lora_rank=8, frozen_dtype="fp32", checkpointing="full"),
    *(SftCase(**SMALL, ranks=ranks, checkpointing=checkpointing, tied=tied, accumulation=accumulation, sharding=sharding)
      for ranks, checkpointing, tied, accumulation, sharding in ((8, "none", False, 1, "full-shard"), (2, "none", True, 3, "shard-grad-op"), (64, "full", False, 1, "full-shard"))),
    *(SftCase(**SMALL, ranks=3, precision=precision, tied=tied, checkpointing="full") for precision, tied in (("bf16-pure", True), ("bf16-pure", False))),
    SftCase(**{**SMALL, "kv_heads": 16}, ranks=2, precision="fp32", checkpointing="full"),
    SftCase(**SMALL, ranks=4, offload="params", checkpointing="full"),
    *(SftCase(**SMALL, ranks=ranks, lora_rank=8, frozen_dtype=frozen, tied=tied, checkpointing=checkpointing, accumulation=accumulation)
      for ranks, frozen, tied, checkpointing, accumulation in ((4, "bf16", False, "none", 1), (3, "fp32", True, "full", 2), (7, "fp32", False, "full", 3))),
]


def rehearsed(case, warm):
    """Of one GPU without a launcher: with one, accelerate gathers what is logged from the only rank."""
    return rehearsed_events(case, warm, "sft_train.py", 0 if case.ranks > 1 else None)


SFT = Comparison(script=FOLDER / "sft_events_test.py", case_type=SftCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                 warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(SFT.run(*sys.argv[1:]))
