"""Every allocation of Trainers with Liger Kernel (use_liger_kernel=True) against the counted ledger: transformers' and TRL's, alone, with DDP, with FSDP1, with FSDP2 and with DeepSpeed's ZeRO.

`recorded` compares with liger_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
"""

import dataclasses
import json
import sys

from deepspeed_events_test import ZeroCase, heaviest_rank  # which puts the folders above on the path
from events_test import FOLDER, QLORA, SMALL, TINY, counted_events, libraries, rehearsed_events
from recorded import Comparison
from reentrant_events_test import SCRIPTS
from trl_zero import TRAINED_WITH, without_second_step, without_settling

WHOLE = "fused_linear_cross_entropy=off"  # logits


@dataclasses.dataclass
class LigerCase(ZeroCase):
    trainer: str = "transformers"
    reference: bool = False  # of trl-grpo
    liger: str = ""  # liger_kernel_config: parts that are switched on or off, as --kernels has them
    has_liger: bool = True
    fsdp: int = 2  # its version

    def fsdp_version(self):
        return self.fsdp

    def prepares(self):
        return self.zero > 0 and self.trainer == "transformers"

    def more_words(self):
        parts = dict(part.split("=") for part in self.liger.split(",")) if self.liger else {}
        return [*super().more_words(), *(["--liger", json.dumps({name: value == "on" for name, value in parts.items()})] if self.has_liger else [])]

    def job(self):
        fields = {**super().job(), "modeling": self.trainer} | ({"grpo": "reference"} if self.reference else {})
        return fields | ({"kernels": ":".join(["liger", *filter(None, [self.liger])])} if self.has_liger else {})


DDP = {"ranks": 2, "sharding": "no-shard"}
QUANTIZED = {**{**TINY, "sequence": 640}, **QLORA}
FSDP1 = {"ranks": 2, "fsdp": 1}
QUANTIZED_BF16 = {**QUANTIZED, "frozen_dtype": "bf16"}  # not prepared by PEFT, whose norms in fp32 FSDP1 wouldn't join with codes
LORA_16 = {"lora_rank": 4, "frozen_dtype": "bf16"}
# Recorded, too.
FEW = [
    LigerCase(**TINY),
    LigerCase(**TINY, batch=2, accumulation=3, tied=True, checkpointing="full"),
    LigerCase(**TINY, precision="bf16-pure", tied=True, attention="auto", optimizer="adamw:foreach"),
    LigerCase(**{**TINY, "kv_heads": 1}, precision="fp32", batch=3, family="qwen3", checkpointing="full"),
    LigerCase(**TINY, precision="fp16-mixed", card="T4", attention="auto", accumulation=2),
    LigerCase(**TINY, storage="bf16", family="qwen2", optimizer="adamw-8bit", checkpointing="full"),
    LigerCase(**TINY, family="phi3", accumulation=2, batch=2),
    LigerCase(**TINY, family="phi3", precision="bf16-pure", checkpointing="full"),
    LigerCase(**{**TINY, "window": 64}, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    LigerCase(**TINY, family="gemma", attention="math", batch=2),
    LigerCase(**{**TINY, "window": 64}, family="gemma3_text", attention="auto", precision="bf16-pure"),
    LigerCase(**TINY, family="granite", batch=2),
    LigerCase(**TINY, family="qwen3", lora_rank=4, lora_dropout=0.1, checkpointing="full"),
    LigerCase(**TINY, lora_rank=4, frozen_dtype="fp32", lora_targets="q_proj,v_proj"),
    LigerCase(**QUANTIZED, checkpointing="full"),
    LigerCase(**TINY, **DDP, accumulation=2, tied=True),
    LigerCase(**TINY, **DDP, lora_rank=4, checkpointing="full"),
    LigerCase(**TINY, liger=WHOLE, family="qwen3", checkpointing="full"),
    LigerCase(**TINY, liger="cross_entropy=on," + WHOLE, precision="bf16-pure", batch=2),
    LigerCase(**TINY, liger="rope=off", family="qwen3", batch=2),
    LigerCase(**TINY, liger="rms_norm=off,swiglu=off"),
    LigerCase(**TINY, trainer="trl", checkpointing="full"),
    LigerCase(**TINY, trainer="trl", family="qwen3", ranks=2, accumulation=2),
    LigerCase(**TINY, trainer="trl-dpo", checkpointing="full"),
    LigerCase(**TINY, trainer="trl-dpo", lora_rank=4, frozen_dtype="fp32"),
    LigerCase(**TINY, trainer="trl-grpo", batch=2, reference=True),
    LigerCase(**TINY, ranks=2, liger=WHOLE, checkpointing="full"),
    LigerCase(**TINY, ranks=2),
    LigerCase(**TINY, **FSDP1, checkpointing="full"),
    LigerCase(**TINY, **{**FSDP1, "ranks": 3}, tied=True, accumulation=2, family="qwen3", sharding="shard-grad-op"),
    LigerCase(**TINY, **FSDP1, lora_rank=4, checkpointing="full"),
    LigerCase(**QUANTIZED_BF16, **FSDP1, liger=WHOLE, checkpointing="full", family="qwen2"),
    LigerCase(**TINY, **FSDP1, precision="bf16-pure", optimizer="adamw:foreach", family="phi3"),
    LigerCase(**TINY, **FSDP1, trainer="trl", checkpointing="full"),
    LigerCase(**TINY, zero=2, ranks=2, bucket=100_000),
    LigerCase(**SMALL, zero=3, ranks=2, liger=WHOLE, checkpointing="full"),
    LigerCase(**SMALL, zero=3, ranks=2),
    LigerCase(**SMALL, zero=3, ranks=2, trainer="trl", **LORA_16, checkpointing="full"),
]
MORE = [
    LigerCase(**TINY, ranks=3, tied=True, accumulation=2, checkpointing="full"),
    LigerCase(**TINY, ranks=2, liger=WHOLE, lora_rank=4, lora_dropout=0.1, checkpointing="full"),
    LigerCase(**TINY, ranks=2, precision="bf16-pure", family="qwen3", sharding="shard-grad-op", optimizer="adamw:foreach"),
    LigerCase(**TINY, ranks=3, offload="params", accumulation=2),
    LigerCase(**TINY, **FSDP1, family="granite"),
    LigerCase(**{**TINY, "window": 64}, **FSDP1, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    LigerCase(**TINY, **FSDP1, offload="params"),
    LigerCase(**TINY, **FSDP1, precision="fp16-mixed", optimizer="adamw:foreach", accumulation=2),
    LigerCase(**TINY, **{**FSDP1, "ranks": 16}, sharding="hybrid-shard", lora_rank=4, lora_dropout=0.1, liger="rope=off"),
    LigerCase(**SMALL, **{**FSDP1, "ranks": 8}, checkpointing="full", accumulation=2, liger="cross_entropy=on," + WHOLE),
    LigerCase(**TINY, **FSDP1, trainer="trl", lora_rank=4, frozen_dtype="fp32"),
    LigerCase(**TINY, zero=3, ranks=2, precision="fp16-mixed", accumulation=2, checkpointing="full"),
    LigerCase(**SMALL, zero=3, ranks=3, tied=True, family="qwen2", accumulation=2, checkpointing="full"),
    LigerCase(**SMALL, zero=3, ranks=2, **LORA_16, checkpointing="full"),
    LigerCase(**TINY, trainer="trl-reward", liger=WHOLE),
    LigerCase(**TINY, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2", tied=True),
    LigerCase(**TINY, trainer="trl-grpo", batch=2, ranks=2, lora_rank=4, frozen_dtype="fp32"),
    LigerCase(**TINY, trainer="trl-dpo", ranks=2, checkpointing="full", accumulation=2),
    LigerCase(**{**TINY, "heads": 1, "kv_heads": 1, "window": 64}, family="gemma3_text", attention="auto", batch=2, checkpointing="full"),
    LigerCase(**{**TINY, "kv_heads": 1}, family="phi3", batch=2),
    LigerCase(**{**TINY, "kv_heads": 4}, precision="fp32", attention="math", batch=2),
    LigerCase(**{**TINY, "sequence": 4096}, batch=5, checkpointing="full"),
    *(LigerCase(**SMALL, precision=precision, tied=tied, checkpointing=checkpointing, accumulation=accumulation, card=card, attention=attention)
      for precision, tied, checkpointing, accumulation, card, attention in (
          ("bf16-mixed", False, "none", 1, "RTX4090", "flash"), ("bf16-mixed", True, "full", 2, "H100-80GB", "auto"), ("bf16-pure", False, "full", 1, "A100-80GB", "auto"), ("bf16-mixed", False, "full", 1, "B200", "auto"))),
    LigerCase(**{**SMALL, "vocabulary": 70001, "sequence": 1601}, family="qwen2", batch=3, checkpointing="full"),
    LigerCase(**{**SMALL, "sequence": 640}, **QLORA, family="qwen2", lora_dropout=0.1),
    LigerCase(**{**SMALL, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 4100}),
]


def settles_between_steps(case):
    return case.trainer == "trl-grpo" and case.zero == 3 and case.reference and case.lora_rank == 0 and case.accumulation == 1


def rank_of(case):
    if case.zero in (1, 2):
        return heaviest_rank(case)
    return None if case.ranks == 1 and case.zero == 0 and case.trainer != "transformers" else 0


def rehearsed(case, warm):
    events = rehearsed_events(case, warm, SCRIPTS[case.trainer], rank_of(case), ["--beta", "0.04" if case.reference else "0"] if case.trainer == "trl-grpo" else ())
    return without_second_step(events) if events and settles_between_steps(case) else events


def counted(case):
    events = counted_events(case)
    return without_settling(events) if settles_between_steps(case) else events


LIGER = Comparison(
    script=FOLDER / "liger_events_test.py", case_type=LigerCase, libraries=["liger-kernel", "deepspeed", "trl", "transformers", "torch", "triton", "accelerate", "peft", "bitsandbytes", "datasets"], are_optional=True,
    few=FEW, more=MORE, warm=lambda: libraries(*TRAINED_WITH), rehearsed=rehearsed, counted=counted, changed=lambda case: dataclasses.replace(case, has_liger=False))


if __name__ == "__main__":
    sys.exit(LIGER.run(*sys.argv[1:]))
