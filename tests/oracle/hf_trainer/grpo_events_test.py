"""Every allocation of TRL's GRPOTrainer against the counted ledger, as sft_events_test.py compares those of its SFTTrainer, with the same parts."""

import dataclasses
import sys

from events_test import FOLDER, QLORA, SMALL, TINY, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison
from sft_events_test import LIBRARIES, SftCase


@dataclasses.dataclass
class GrpoCase(SftCase):
    def job(self):
        return {**super().job(), "modeling": "trl-grpo"}


# Recorded, too. A step has two completions or more.
FEW = [
    GrpoCase(**TINY, batch=2, checkpointing="full"),
    GrpoCase(**TINY, batch=3, accumulation=8, tied=True),
    GrpoCase(**TINY, batch=4, precision="fp32", family="qwen3", checkpointing="full", optimizer="adamw:foreach"),
    GrpoCase(**{**TINY, "sequence": 2400}, batch=2, precision="bf16-pure", tied=True),
    GrpoCase(**TINY, batch=2, lora_rank=4, lora_dropout=0.1, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**{**TINY, "sequence": 640}, **QLORA, batch=2, checkpointing="full"),
    GrpoCase(**TINY, batch=2, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    GrpoCase(**TINY, accumulation=5, family="qwen2"),
    GrpoCase(**TINY, batch=2, lora_rank=4, frozen_dtype="bf16", accumulation=2),
    GrpoCase(**TINY_GPT2, batch=2, tied=True, checkpointing="full"),
    GrpoCase(**TINY, batch=2, ranks=3, sharding="no-shard", accumulation=2),
    GrpoCase(**TINY, batch=3, ranks=2, sharding="no-shard", lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**TINY, batch=2, ranks=4, checkpointing="full", accumulation=2),
    GrpoCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**TINY, ranks=8, family="qwen2", tied=True, sharding="shard-grad-op"),
]
MORE = [
    GrpoCase(**SMALL, checkpointing="full", batch=8, accumulation=2),
    GrpoCase(**SMALL, batch=2, precision="bf16-pure", tied=True),
    GrpoCase(**{**SMALL, "kv_heads": 16}, batch=2, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    GrpoCase(**{**SMALL, "sequence": 2047}, batch=2, attention="auto", card="A100-80GB", lora_rank=16, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**{**SMALL, "sequence": 640}, batch=4, precision="fp16-mixed", card="T4", attention="auto", lora_rank=8, frozen_dtype="fp32"),
    GrpoCase(**{**SMALL, "sequence": 512, "window": 256}, batch=8, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    GrpoCase(**{**SMALL, "window": 512, "layers": 7}, batch=2, family="gemma3_text", tied=True, attention="auto", checkpointing="full", optimizer="adafactor"),
    GrpoCase(**SMALL, family="phi3", batch=2, optimizer="adamw-8bit", checkpointing="full"),
    GrpoCase(**SMALL, family="granite", batch=2, tied=True, checkpointing="full", storage="bf16"),
    GrpoCase(**TINY_GPT2, batch=2, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, tied=True),
    *(GrpoCase(**{**SMALL, "layers": 1, "sequence": sequence}, batch=batch, card=card, attention="auto") for sequence, batch, card in ((4096, 36, "RTX5090"), (1000, 80, "A100-80GB"))),
    GrpoCase(**{**SMALL, "sequence": 640}, **QLORA, ranks=2, tied=True, checkpointing="full"),
    GrpoCase(**TINY, ranks=2, precision="fp16-mixed"),
    GrpoCase(**TINY, ranks=2, precision="bf16-pure", batch=2),
    GrpoCase(**TINY, ranks=2, offload="params"),
    GrpoCase(**{**TINY, "sequence": 3000}, ranks=2, sharding="no-shard", batch=8, checkpointing="full"),  # texts in several frames
]


def rehearsed(case, warm):
    """Of one GPU without a launcher: with one, accelerate gathers what is logged from the only rank."""
    return rehearsed_events(case, warm, "grpo_train.py", 0 if case.ranks > 1 else None)


GRPO = Comparison(script=FOLDER / "grpo_events_test.py", case_type=GrpoCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                    warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(GRPO.run(*sys.argv[1:]))
