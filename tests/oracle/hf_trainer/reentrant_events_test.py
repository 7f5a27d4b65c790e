"""Every allocation of Trainers whose checkpoints re-enter autograd (use_reentrant=True) against the counted ledger: transformers' and TRL's, alone, with DDP, with FSDP2 and with DeepSpeed's ZeRO.

`recorded` compares with reentrant_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
"""

import dataclasses
import sys

import dpo_deepspeed_events_test
from bert_events_test import TINY as TINY_BERT
from deepspeed_events_test import AT_ONCE, ZeroCase, heaviest_rank  # which puts the folders above on the path
from events_test import FOLDER, OSS, QLORA, SMALL, TINY, counted_events, libraries, rehearsed_events
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison
from reward_deepspeed_events_test import trained_groups
from trl_zero import TRAINED_WITH, without_second_step, without_settling

SCRIPTS = {"transformers": "train.py", "trl": "sft_train.py", "trl-dpo": "dpo_train.py", "trl-reward": "reward_train.py", "trl-grpo": "grpo_train.py"}


@dataclasses.dataclass
class ReentrantCase(ZeroCase):
    checkpointing: str = "full"
    trainer: str = "transformers"
    reference: bool = False  # of trl-grpo
    use_reentrant: str = "on"
    finds_unused: str = "default"  # of DDP
    dora: bool = False

    def prepares(self):
        return self.zero > 0 and self.trainer == "transformers"

    def is_reentrant(self):
        """Beside adapters under ZeRO-3, TRL changes what it is given."""
        return self.use_reentrant == "on" or (self.use_reentrant == "off" and self.zero == 3 and self.lora_rank > 0 and not self.prepares())

    def more_words(self):
        found = [] if self.finds_unused == "default" else ["--find-unused", self.finds_unused]
        return ["--use-reentrant", self.use_reentrant, *(["--dora"] if self.dora else []), *found, *super().more_words()]

    def job(self):
        fields = {**super().job(), "modeling": self.trainer, "reentrant_checkpoints": "on" if self.is_reentrant() else "off"}
        fields |= {"grpo": "reference"} if self.reference else {}
        fields |= {"dora": "on"} if self.dora else {}
        return fields if self.finds_unused == "default" else fields | {"find_unused_parameters": self.finds_unused}


LORA = {"lora_rank": 4, "lora_dropout": 0.1}
LORA_16 = {"lora_rank": 4, "frozen_dtype": "bf16"}
DDP = {"ranks": 2, "sharding": "no-shard"}
QUANTIZED = {**{**TINY, "sequence": 640}, **QLORA}
USUAL = {"use_reentrant": "default"}
# Recorded, too.
FEW = [
    ReentrantCase(**TINY, precision="bf16-pure", tied=True, accumulation=3, batch=2, optimizer="adamw:foreach"),
    ReentrantCase(**TINY, precision="fp16-mixed", card="T4", attention="auto", family="qwen2"),
    ReentrantCase(**TINY_BERT, **LORA, batch=2),
    ReentrantCase(**TINY_GPT2, tied=True, **LORA),
    ReentrantCase(**QUANTIZED, family="qwen2", lora_dropout=0.1),
    ReentrantCase(**TINY, **DDP, accumulation=2, tied=True),
    ReentrantCase(**TINY, **DDP, **LORA, finds_unused="off", accumulation=3, frozen_dtype="fp32"),
    ReentrantCase(**TINY, **DDP, **LORA, **USUAL, finds_unused="off", accumulation=2),
    ReentrantCase(**TINY, **DDP, **USUAL, finds_unused="on", trainer="trl"),
    ReentrantCase(**TINY, **DDP, **USUAL, finds_unused="off", checkpointing="none"),
    ReentrantCase(**TINY, ranks=3, tied=True, accumulation=2),
    ReentrantCase(**QUANTIZED, ranks=2),
    ReentrantCase(**TINY, ranks=2, **LORA, frozen_dtype="fp32", trainer="trl-dpo"),
    ReentrantCase(**TINY, trainer="trl-grpo", batch=2, reference=True, lora_rank=4, frozen_dtype="fp32"),
    ReentrantCase(**TINY, ranks=2, offload="params"),
    ReentrantCase(**TINY, zero=2, ranks=2, bucket=100_000, **LORA_16),
    ReentrantCase(**SMALL, zero=3, ranks=2),
    ReentrantCase(**SMALL, zero=3, ranks=4, sizes=AT_ONCE, bucket=0, accumulation=2, trainer="trl", **LORA_16),
    ReentrantCase(**SMALL, zero=3, ranks=2, trainer="trl-reward", **LORA_16, use_reentrant="off"),  # which TRL changes
]
MORE = [
    ReentrantCase(**TINY),
    ReentrantCase(**{**TINY, "kv_heads": 4}, precision="fp32", family="qwen3"),
    ReentrantCase(**TINY, lora_rank=4, frozen_dtype="fp32", accumulation=2, family="mistral"),
    *(ReentrantCase(**TINY, family=family, tied=True) for family in ("gemma", "phi3", "granite", "mixtral")),
    ReentrantCase(**{**TINY, "window": 64}, family="gemma2", tied=True, attention="auto"),
    ReentrantCase(**{**TINY, "window": 64, "layers": 7}, family="gemma3_text", tied=True, attention="auto"),
    ReentrantCase(**TINY, family="qwen3_moe", experts=128, chosen=8, dense=(1,), batch=2),
    ReentrantCase(**TINY, **OSS, batch=3, storage="bf16"),
    ReentrantCase(**TINY_BERT, precision="fp16-mixed", card="T4", attention="auto", accumulation=2),
    ReentrantCase(**TINY_BERT, precision="fp32", attention="math", batch=2),
    ReentrantCase(**TINY_BERT, **DDP, lora_rank=4, finds_unused="off"),
    ReentrantCase(**TINY_GPT2, ranks=2, lora_rank=4),
    *(ReentrantCase(**TINY, trainer=trainer, batch=2) for trainer in ("trl", "trl-dpo", "trl-reward", "trl-grpo")),
    ReentrantCase(**TINY, trainer="trl-dpo", lora_rank=4, frozen_dtype="fp32"),
    ReentrantCase(**SMALL, storage="bf16", optimizer="adamw-8bit:paged", batch=2),
    ReentrantCase(**SMALL, lora_rank=16, card="RTX4090", precision="bf16-pure"),
    ReentrantCase(**SMALL, attention="auto", card="H200-141GB", accumulation=3, clip=False),
    ReentrantCase(**TINY, lora_rank=4, dora=True, lora_dropout=0.1),
    ReentrantCase(**TINY, ranks=2, lora_rank=4, dora=True),
    ReentrantCase(**QUANTIZED, **DDP, finds_unused="off"),
    ReentrantCase(**TINY, **DDP, lora_rank=4, frozen_dtype="fp32", finds_unused="off", trainer="trl-dpo"),
    *(ReentrantCase(**TINY, **DDP, **USUAL, finds_unused="off", checkpointing="none", lora_rank=rank, trainer=trainer) for rank, trainer in ((4, "transformers"), (0, "trl"))),
    ReentrantCase(**TINY, **DDP, **USUAL, finds_unused="on", accumulation=2),
    ReentrantCase(**TINY, ranks=2, sharding="shard-grad-op"),
    ReentrantCase(**TINY, precision="fp16-mixed", ranks=2, accumulation=2),
    ReentrantCase(**TINY, precision="bf16-pure", ranks=4, family="qwen3", optimizer="adamw:foreach"),
    ReentrantCase(**SMALL, ranks=64, tied=True, attention="auto"),
    ReentrantCase(**{**QUANTIZED, "quantization": "nf4"}, family="qwen2", ranks=3, offload="params", tied=True, accumulation=2, card="A100-80GB"),
    *(ReentrantCase(**TINY, ranks=2, trainer=trainer, batch=2) for trainer in ("trl", "trl-dpo", "trl-reward", "trl-grpo")),
    ReentrantCase(**TINY, ranks=3, lora_rank=4, frozen_dtype="fp32", accumulation=2, trainer="trl"),
    ReentrantCase(**TINY, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2"),
    ReentrantCase(**TINY, zero=1, ranks=2, bucket=100_000, lora_rank=4, frozen_dtype="fp16", precision="fp16-mixed", card="T4", attention="auto"),
    ReentrantCase(**QUANTIZED, zero=2, ranks=2, bucket=100_000),
    *(ReentrantCase(**TINY, zero=2, ranks=2, trainer="trl-dpo", bucket=30_000, lora_rank=rank, accumulation=2) for rank in (0, 4)),
    *(ReentrantCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=3, accumulation=2, trainer=trainer) for trainer in ("transformers", "trl")),
    ReentrantCase(**SMALL, zero=3, ranks=4, sizes="auto", bucket=0, accumulation=2),
    ReentrantCase(**SMALL, zero=3, ranks=3, serial=True, precision="fp16-mixed", family="qwen2", tied=True, accumulation=2),
    ReentrantCase(**SMALL, zero=3, ranks=2, offload="params", lora_rank=8, accumulation=2),
    ReentrantCase(**SMALL, zero=3, ranks=2, offload="optimizer", accumulation=2),
    ReentrantCase(**SMALL, zero=3, ranks=8, family="phi3"),
    ReentrantCase(**SMALL, zero=3, ranks=8, family="gemma", tied=True, attention="auto", lora_rank=8),
    *(ReentrantCase(**SMALL, zero=3, ranks=4, trainer=trainer, batch=2) for trainer in ("trl", "trl-dpo", "trl-reward", "trl-grpo")),
    ReentrantCase(**SMALL, zero=3, ranks=4, trainer="trl-grpo", batch=2, lora_rank=8, reference=True),
    *(ReentrantCase(**SMALL, zero=3, ranks=2, trainer=trainer, lora_rank=8, use_reentrant="off") for trainer in ("trl", "trl-dpo", "transformers")),
]


def settles_between_steps(case):
    """As with DPOTrainer and GRPOTrainer elsewhere (dpo_deepspeed_events_test.py)."""
    if case.trainer == "trl-dpo":
        return dpo_deepspeed_events_test.settles_between_steps(case)
    return case.trainer == "trl-grpo" and case.zero == 3 and case.reference and case.lora_rank == 0 and case.accumulation == 1


def rank_of(case):
    if case.zero in (1, 2):
        return heaviest_rank(case, trained_groups(case)) if case.trainer == "trl-reward" else heaviest_rank(case)
    return None if case.ranks == 1 and case.zero == 0 and case.trainer != "transformers" else 0


def rehearsed(case, warm):
    events = rehearsed_events(case, warm, SCRIPTS[case.trainer], rank_of(case), ["--beta", "0.04" if case.reference else "0"] if case.trainer == "trl-grpo" else ())
    return without_second_step(events) if events and settles_between_steps(case) else events


def counted(case):
    events = counted_events(case)
    return without_settling(events) if settles_between_steps(case) else events


def other(case):
    """The same with checkpoints of the usual kind, or of this one."""
    return dataclasses.replace(case, use_reentrant="default" if case.is_reentrant() else "on")


REENTRANT = Comparison(
    script=FOLDER / "reentrant_events_test.py", case_type=ReentrantCase, libraries=["deepspeed", "trl", "transformers", "torch", "accelerate", "peft", "bitsandbytes", "datasets"], are_optional=True,
    few=FEW, more=MORE, warm=lambda: libraries(*TRAINED_WITH), rehearsed=rehearsed, counted=counted, changed=other)


if __name__ == "__main__":
    sys.exit(REENTRANT.run(*sys.argv[1:]))
