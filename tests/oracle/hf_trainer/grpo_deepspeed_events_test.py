"""Every allocation of TRL's GRPOTrainer with DeepSpeed's ZeRO-1, ZeRO-2 and ZeRO-3 against the counted ledger, as sft_deepspeed_events_test.py compares those of its SFTTrainer, with the same parts.

Texts of completions that ranks send each other are up to 256 KiB of all ranks: a rehearsal sends more in pieces.
"""

import dataclasses
import sys
import typing

import deepspeed_events_test
from deepspeed_events_test import AT_ONCE  # which puts the folders above on the path
from events_test import QLORA, SMALL, TINY, counted_events
from grpo_events_test import choices_of, steps_of_completions, steps_that_generate, words_of_choices
from trl_zero import SCARCE, TrlZeroCase, comparison, drawn_as, rehearsed_by, without_second_step, without_settling


@dataclasses.dataclass
class GrpoZeroCase(TrlZeroCase):
    MODELING: typing.ClassVar[str] = "trl-grpo"
    reference: bool = False
    iterations: int = 1
    generation: int = 0

    def job(self):
        return {**super().job(), **choices_of(self)}


# Recorded, too. A step has two completions or more.
FEW = [
    GrpoZeroCase(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, batch=2, tied=True, optimizer="adamw:deepspeed"),
    GrpoZeroCase(**TINY, zero=1, ranks=1, bucket=100_000, accumulation=2, checkpointing="full", family="qwen3"),
    GrpoZeroCase(**TINY, zero=1, ranks=8, overlap=True, bucket=30_000, checkpointing="full"),
    GrpoZeroCase(**TINY, zero=2, ranks=3, offload="optimizer", bucket=30_000, accumulation=2, precision="fp16-mixed"),
    GrpoZeroCase(**TINY, zero=2, ranks=4, lora_rank=4, checkpointing="full", accumulation=2),
    GrpoZeroCase(**TINY, zero=1, ranks=2, lora_rank=4, lora_dropout=0.1, bucket=3_000, family="qwen2", tied=True),
    GrpoZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=2, ranks=2, batch=2, checkpointing="full"),
    GrpoZeroCase(**TINY, zero=3, ranks=2, batch=2, checkpointing="full"),
    GrpoZeroCase(**SMALL, zero=3, ranks=8, checkpointing="full"),
    GrpoZeroCase(**SMALL, zero=3, ranks=3, tied=True, family="qwen2", sizes="auto", bucket=0, accumulation=3),
    GrpoZeroCase(**SMALL, zero=3, ranks=1, batch=2, sizes=SCARCE, accumulation=2, checkpointing="full"),
    GrpoZeroCase(**SMALL, zero=3, ranks=4, offload="params", sizes=AT_ONCE, bucket=0, checkpointing="full", optimizer="adamw:deepspeed", accumulation=2),
    GrpoZeroCase(**TINY, zero=3, ranks=2, lora_rank=4, checkpointing="full", accumulation=2),
    GrpoZeroCase(**SMALL, zero=3, ranks=4, lora_rank=16, sizes="auto", bucket=0),
    GrpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=2, checkpointing="full", accumulation=2),
    # A reference, and completions that are trained on again.
    GrpoZeroCase(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=2, batch=2, reference=True),
    GrpoZeroCase(**TINY, zero=1, ranks=1, bucket=100_000, accumulation=2, checkpointing="full", family="qwen3", reference=True, iterations=2),
    GrpoZeroCase(**TINY, zero=1, ranks=2, lora_rank=4, lora_dropout=0.1, bucket=3_000, family="qwen2", tied=True, iterations=2, reference=True),
    GrpoZeroCase(**TINY, zero=3, ranks=2, batch=2, checkpointing="full", reference=True),
    GrpoZeroCase(**SMALL, zero=3, ranks=4, batch=2, reference=True, accumulation=2),
    GrpoZeroCase(**TINY, zero=3, ranks=2, lora_rank=4, reference=True),
    GrpoZeroCase(**TINY, zero=2, ranks=2, bucket=100_000, checkpointing="full"),  # the last one has another bucket in each step, which ZeRO-3 makes in loading
]
MORE = [
    *(GrpoZeroCase(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing, attention="auto", overlap=overlap)
      for zero, ranks, bucket, tied, accumulation, checkpointing, overlap in (
          (2, 8, 20_000_000, True, 2, "full", False), (2, 3, 500_000_000, False, 1, "none", True), (1, 4, 2_000_000, False, 3, "full", False), (1, 16, 500_000_000, True, 1, "none", False))),
    *(GrpoZeroCase(**{**SMALL, "sequence": 512}, zero=3, ranks=ranks, family=family, tied=tied, accumulation=accumulation, checkpointing=checkpointing, sizes=sizes, attention=attention, serial=serial)
      for ranks, family, tied, accumulation, checkpointing, sizes, attention, serial in (
          (16, "llama", False, 2, "full", "", "flash", False), (3, "phi3", False, 1, "full", "auto", "auto", False), (4, "granite", True, 2, "none", SCARCE, "auto", True), (2, "gemma2", True, 1, "full", "auto", "math", False))),
    *(GrpoZeroCase(**{**SMALL, "sequence": 512}, zero=3, ranks=ranks, lora_rank=rank, family=family, tied=tied, accumulation=accumulation, checkpointing=checkpointing, sizes=sizes, offload=offload, precision=precision,
                   frozen_dtype=precision.removesuffix("-mixed"))
      for ranks, rank, family, tied, accumulation, checkpointing, sizes, offload, precision in (
          (2, 16, "llama", False, 1, "full", AT_ONCE, "none", "bf16-mixed"), (3, 64, "qwen3", True, 3, "full", "", "none", "fp16-mixed"), (64, 16, "mistral", True, 1, "none", "auto", "params", "bf16-mixed"))),
    GrpoZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "frozen_dtype": "bf16"}, zero=3, ranks=4, family="qwen2", sizes=SCARCE),
    *(GrpoZeroCase(**{**SMALL, "sequence": 512}, zero=3, ranks=ranks, reference=True, checkpointing=checkpointing, accumulation=accumulation, sizes=sizes, offload=offload, family=family, lora_rank=rank)
      for ranks, checkpointing, accumulation, sizes, offload, family, rank in (
          (8, "full", 1, "", "none", "llama", 0), (3, "none", 3, "auto", "none", "qwen2", 0), (2, "full", 2, AT_ONCE, "params", "llama", 0), (4, "full", 1, SCARCE, "none", "qwen3", 0),
          (2, "full", 1, "", "none", "llama", 16), (4, "none", 1, AT_ONCE, "none", "mistral", 8), (2, "full", 1, "auto", "params", "qwen2", 16))),
    GrpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=2, reference=True, checkpointing="full"),
    GrpoZeroCase(**{**SMALL, "sequence": 512}, zero=2, ranks=8, batch=2, generation=3, reference=True, bucket=20_000_000, offload="optimizer"),
    GrpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=1, ranks=8, family="phi3", attention="auto", checkpointing="full"),
]


def settles_between_steps(case):
    """Whether the reference's second forward is the second step's, as with DPOTrainer (dpo_deepspeed_events_test.py)."""
    return case.zero == 3 and case.reference and case.lora_rank == 0 and (case.generation or case.accumulation) == 1


def rehearsed(case, warm):
    events = steps_that_generate(rehearsed_by("grpo_train.py", case, warm, more=words_of_choices(case)), steps_of_completions(case))
    return without_second_step(events) if events and settles_between_steps(case) else events


def counted(case):
    events = counted_events(case)
    return without_settling(events) if settles_between_steps(case) else events


def drawn(seed, *only):
    case = drawn_as(GrpoZeroCase, seed, *only)
    batch = max(2, case.batch)
    return dataclasses.replace(case, batch=batch, sequence=min(case.sequence, 40_000 // (batch * case.accumulation * case.ranks)))


GRPO_DEEPSPEED = comparison("grpo_deepspeed_events_test.py", GrpoZeroCase, FEW, MORE, rehearsed, counted)


if __name__ == "__main__":
    sys.exit(deepspeed_events_test.main(GRPO_DEEPSPEED, drawn, *sys.argv[1:]))
