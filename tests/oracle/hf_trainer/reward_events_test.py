"""Every allocation of TRL's RewardTrainer against the counted ledger, as sft_events_test.py compares those of its SFTTrainer, with the same parts."""

import dataclasses
import sys

from events_test import FOLDER, QLORA, SMALL, TINY, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison
from sft_events_test import LIBRARIES, SftCase


@dataclasses.dataclass
class RewardCase(SftCase):
    def job(self):
        return {**super().job(), "modeling": "trl-reward"}


# Recorded, too.
FEW = [
    RewardCase(**TINY, checkpointing="full"),
    RewardCase(**TINY, batch=3, accumulation=3, tied=True),
    RewardCase(**TINY, precision="fp32", family="qwen3", checkpointing="full", optimizer="adamw:foreach"),
    RewardCase(**{**TINY, "sequence": 2400}, precision="bf16-pure", tied=True),
    RewardCase(**TINY, lora_rank=4, lora_dropout=0.1, frozen_dtype="fp32", checkpointing="full"),
    RewardCase(**{**TINY, "sequence": 640}, **QLORA, checkpointing="full"),
    RewardCase(**TINY, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    RewardCase(**TINY, ranks=3, sharding="no-shard", accumulation=2),
    RewardCase(**TINY, ranks=2, sharding="no-shard", lora_rank=4, frozen_dtype="fp32"),
    RewardCase(**TINY, ranks=4, checkpointing="full", accumulation=2),
    RewardCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full", accumulation=2),
    RewardCase(**TINY, ranks=8, family="qwen2", batch=2, tied=True),
    RewardCase(**TINY_GPT2, tied=True, checkpointing="full"),
]
MORE = [
    RewardCase(**SMALL, checkpointing="full", batch=2, accumulation=2),
    RewardCase(**SMALL, precision="bf16-pure", tied=True),
    RewardCase(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    RewardCase(**SMALL, attention="auto", checkpointing="full"),
    RewardCase(**{**SMALL, "sequence": 2047}, attention="auto", card="A100-80GB", lora_rank=16, frozen_dtype="fp32", checkpointing="full"),
    RewardCase(**{**SMALL, "sequence": 640}, precision="fp16-mixed", card="T4", attention="auto", lora_rank=8, frozen_dtype="fp32"),
    RewardCase(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    RewardCase(**{**SMALL, "window": 512, "layers": 7}, family="gemma3_text", tied=True, attention="auto", checkpointing="full", optimizer="adafactor"),
    RewardCase(**SMALL, family="qwen2", lora_rank=8, lora_targets="q_proj,v_proj", frozen_dtype="fp32", batch=3),
    RewardCase(**SMALL, family="phi3", optimizer="adamw-8bit", checkpointing="full"),
    RewardCase(**SMALL, storage="bf16", checkpointing="full", batch=9),
    RewardCase(**TINY_GPT2, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, tied=True),
    *(RewardCase(**{**SMALL, "layers": 1, "sequence": sequence}, batch=batch, card=card, attention="auto") for sequence, batch, card in ((4096, 18, "RTX5090"), (1000, 40, "A100-80GB"))),
    RewardCase(**SMALL, ranks=4, sharding="no-shard", lora_rank=8, frozen_dtype="fp32", checkpointing="full", accumulation=3),
    RewardCase(**SMALL, ranks=3, family="qwen3", offload="params", checkpointing="full"),
    RewardCase(**SMALL, ranks=8, sharding="shard-grad-op", accumulation=2),
    RewardCase(**{**SMALL, "sequence": 640}, **QLORA, ranks=2, tied=True, checkpointing="full"),
    RewardCase(**{**SMALL, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, family="qwen2"),
    RewardCase(**{**TINY, "sequence": 131072, "layers": 1}),  # places of the last tokens by several thread blocks
    RewardCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="bf16"),
    RewardCase(**TINY_GPT2, ranks=2, lora_rank=4, frozen_dtype="fp32"),
]


def rehearsed(case, warm):
    """Of one GPU without a launcher: with one, accelerate gathers what is logged from the only rank."""
    return rehearsed_events(case, warm, "reward_train.py", 0 if case.ranks > 1 else None)


REWARD = Comparison(script=FOLDER / "reward_events_test.py", case_type=RewardCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                    warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(REWARD.run(*sys.argv[1:]))
