"""Every allocation of TRL's DPOTrainer against the counted ledger, as sft_events_test.py compares those of its SFTTrainer, with the same parts."""

import dataclasses
import sys

from events_test import FOLDER, QLORA, SMALL, TINY, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison
from sft_events_test import LIBRARIES, SftCase


@dataclasses.dataclass
class DpoCase(SftCase):
    def job(self):
        return {**super().job(), "modeling": "trl-dpo"}


# Recorded, too.
FEW = [
    DpoCase(**TINY, checkpointing="full"),
    DpoCase(**TINY, batch=3, accumulation=3, tied=True),
    DpoCase(**TINY, precision="fp32", family="qwen3", checkpointing="full", optimizer="adamw:foreach"),
    DpoCase(**{**TINY, "sequence": 2400}, precision="bf16-pure", tied=True),
    DpoCase(**TINY, lora_rank=4, lora_dropout=0.1, frozen_dtype="fp32", checkpointing="full"),
    DpoCase(**{**TINY, "sequence": 640}, **QLORA, checkpointing="full"),
    DpoCase(**TINY, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    DpoCase(**TINY, ranks=3, sharding="no-shard", accumulation=2),
    DpoCase(**TINY, ranks=2, sharding="no-shard", lora_rank=4, frozen_dtype="fp32"),
    DpoCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full", accumulation=2),
    DpoCase(**{**TINY, "sequence": 640}, **QLORA, ranks=2, checkpointing="full"),
    DpoCase(**TINY, ranks=2, checkpointing="full"),
    DpoCase(**TINY, ranks=3, batch=2, accumulation=3, tied=True),
    DpoCase(**TINY, ranks=8, sharding="shard-grad-op", accumulation=2, checkpointing="full"),
    DpoCase(**TINY, ranks=4, precision="fp32", family="qwen3", optimizer="adamw:foreach", checkpointing="full"),
    DpoCase(**TINY, ranks=2, precision="bf16-pure", sharding="shard-grad-op"),
    DpoCase(**TINY, ranks=2, precision="fp16-mixed", accumulation=2, checkpointing="full"),
    DpoCase(**TINY_GPT2, tied=True, checkpointing="full"),
]
MORE = [
    DpoCase(**SMALL, checkpointing="full", batch=2, accumulation=2),
    DpoCase(**SMALL, precision="bf16-pure", tied=True),
    DpoCase(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    DpoCase(**SMALL, attention="auto", checkpointing="full"),
    DpoCase(**{**SMALL, "sequence": 2047}, attention="auto", card="A100-80GB", lora_rank=16, frozen_dtype="fp32", checkpointing="full"),
    DpoCase(**{**SMALL, "sequence": 640}, precision="fp16-mixed", card="T4", attention="auto", lora_rank=8, frozen_dtype="fp32"),
    DpoCase(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    DpoCase(**{**SMALL, "window": 512, "layers": 7}, family="gemma3_text", tied=True, attention="auto", checkpointing="full", optimizer="adafactor"),
    DpoCase(**SMALL, family="qwen2", lora_rank=8, lora_targets="q_proj,v_proj", frozen_dtype="bf16", batch=3),
    DpoCase(**SMALL, family="phi3", optimizer="adamw-8bit", checkpointing="full"),
    DpoCase(**SMALL, family="granite", tied=True, checkpointing="full", storage="bf16"),
    DpoCase(**TINY_GPT2, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, tied=True),
    *(DpoCase(**{**SMALL, "layers": 1, "sequence": sequence}, batch=batch, card=card, attention="auto") for sequence, batch, card in ((4096, 18, "RTX5090"), (1000, 40, "A100-80GB"))),
    DpoCase(**SMALL, ranks=4, sharding="no-shard", lora_rank=8, frozen_dtype="fp32", checkpointing="full", accumulation=3),
    DpoCase(**SMALL, ranks=3, lora_rank=8, family="qwen3", frozen_dtype="bf16", checkpointing="full"),
    DpoCase(**{**SMALL, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, ranks=4, tied=True),
    DpoCase(**SMALL, ranks=8, lora_rank=8, frozen_dtype="fp32", sharding="shard-grad-op", accumulation=2),
    DpoCase(**SMALL, ranks=8, checkpointing="full", attention="auto"),
    DpoCase(**SMALL, ranks=64, checkpointing="full", accumulation=2),
    DpoCase(**SMALL, ranks=4, sharding="shard-grad-op", family="qwen2", tied=True),
    DpoCase(**SMALL, ranks=3, family="phi3", batch=3, accumulation=3),
    DpoCase(**SMALL, ranks=2, precision="bf16-pure", tied=True, checkpointing="full", optimizer="adamw:foreach"),
    DpoCase(**{**SMALL, "kv_heads": 16}, ranks=5, precision="fp32", checkpointing="full"),
    DpoCase(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", ranks=2, tied=True, attention="auto", checkpointing="full"),
    DpoCase(**SMALL, ranks=4, family="granite", tied=True, precision="fp16-mixed", accumulation=2),
    DpoCase(**TINY_GPT2, ranks=2, tied=True),
    DpoCase(**TINY_GPT2, ranks=4, tied=True, sharding="shard-grad-op", checkpointing="full", accumulation=2),
]


def rehearsed(case, warm):
    """Of one GPU without a launcher: with one, accelerate gathers what is logged from the only rank."""
    return rehearsed_events(case, warm, "dpo_train.py", 0 if case.ranks > 1 else None)


DPO = Comparison(script=FOLDER / "dpo_events_test.py", case_type=DpoCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                 warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(DPO.run(*sys.argv[1:]))
