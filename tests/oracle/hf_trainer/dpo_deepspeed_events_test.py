"""Every allocation of TRL's DPOTrainer with DeepSpeed's ZeRO-1, ZeRO-2 and ZeRO-3 against the counted ledger, as sft_deepspeed_events_test.py compares those of its SFTTrainer, with the same parts."""

import dataclasses
import sys
import typing

import deepspeed_events_test
from deepspeed_events_test import AT_ONCE  # which puts the folders above on the path
from events_test import QLORA, SMALL, TINY, counted_events
from trl_zero import SCARCE, TrlZeroCase, comparison, drawn_as, rehearsed_by, without_second_step, without_settling


@dataclasses.dataclass
class DpoZeroCase(TrlZeroCase):
    MODELING: typing.ClassVar[str] = "trl-dpo"


# Recorded, too.
FEW = [
    DpoZeroCase(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, batch=2, tied=True, optimizer="adamw:deepspeed"),
    DpoZeroCase(**TINY, zero=1, ranks=1, bucket=100_000, accumulation=2, checkpointing="full", family="qwen3"),
    DpoZeroCase(**TINY, zero=1, ranks=8, overlap=True, bucket=30_000, checkpointing="full"),
    DpoZeroCase(**TINY, zero=2, ranks=3, offload="optimizer", bucket=30_000, accumulation=2, precision="fp16-mixed"),
    DpoZeroCase(**TINY, zero=2, ranks=4, lora_rank=4, checkpointing="full", accumulation=2),
    DpoZeroCase(**TINY, zero=1, ranks=2, lora_rank=4, lora_dropout=0.1, bucket=3_000, family="qwen2", tied=True),
    DpoZeroCase(**TINY, zero=3, ranks=2, checkpointing="full"),
    DpoZeroCase(**SMALL, zero=3, ranks=8, checkpointing="full"),
    DpoZeroCase(**SMALL, zero=3, ranks=1, accumulation=2, checkpointing="full"),
    DpoZeroCase(**SMALL, zero=3, ranks=3, tied=True, family="qwen2", sizes="auto", bucket=0, accumulation=3),
    DpoZeroCase(**SMALL, zero=3, ranks=8, sizes=AT_ONCE, bucket=0, checkpointing="full"),
    DpoZeroCase(**SMALL, zero=3, ranks=2, tied=True, sizes=SCARCE, accumulation=2),
    DpoZeroCase(**SMALL, zero=3, ranks=4, offload="params", sizes="auto", bucket=0, checkpointing="full", optimizer="adamw:deepspeed", accumulation=2),
    DpoZeroCase(**TINY, zero=3, ranks=2, lora_rank=4),
    DpoZeroCase(**SMALL, zero=3, ranks=4, lora_rank=16, sizes="auto", bucket=0, accumulation=2),
    # Checkpoints that re-enter autograd from the second forward on.
    DpoZeroCase(**TINY, zero=3, ranks=2, lora_rank=4, checkpointing="full", accumulation=2),
    DpoZeroCase(**SMALL, zero=3, ranks=2, lora_rank=16, checkpointing="full"),
    DpoZeroCase(**SMALL, zero=3, ranks=4, lora_rank=16, checkpointing="full", sizes="auto", bucket=0, accumulation=2),
    DpoZeroCase(**SMALL, zero=3, ranks=3, lora_rank=8, lora_targets="q_proj,v_proj", checkpointing="full", sizes=AT_ONCE, bucket=0, family="qwen2", tied=True),
    DpoZeroCase(**SMALL, zero=3, ranks=1, lora_rank=8, lora_dropout=0.1, checkpointing="full", precision="fp16-mixed", frozen_dtype="fp16"),
    DpoZeroCase(**SMALL, zero=3, ranks=64, lora_rank=16, checkpointing="full", offload="params", sizes=SCARCE, optimizer="adamw:deepspeed"),
    DpoZeroCase(**SMALL, zero=3, ranks=4, lora_rank=8, lora_targets="q_proj,v_proj", sizes="auto", bucket=0),  # each of the feed-forward's matrices is gathered ahead alone
    # Bases in 4 bits.
    DpoZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=3, ranks=2, checkpointing="full"),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=2),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "frozen_dtype": "bf16"}, zero=3, ranks=4, checkpointing="full", accumulation=2),
    DpoZeroCase(**{**SMALL, "sequence": 320}, **{**QLORA, "quantization": "nf4"}, zero=3, ranks=3, family="qwen2", tied=True, sizes="auto", bucket=0, checkpointing="full"),
    DpoZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, zero=2, ranks=2, bucket=3000, checkpointing="full"),
    DpoZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=2, ranks=4, accumulation=2, offload="optimizer", checkpointing="full"),
    DpoZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "quantization": "nf4"}, family="qwen2", zero=1, ranks=1, lora_dropout=0.1, tied=True),
    DpoZeroCase(**{**TINY, "sequence": 320}, **QLORA, family="qwen3", zero=1, ranks=8, overlap=True, checkpointing="full", batch=2, optimizer="adamw:foreach"),
    DpoZeroCase(**TINY, zero=2, ranks=2, bucket=100_000, checkpointing="full"),  # the last one has another bucket in each step, which ZeRO-3 makes in loading
]
MORE = [
    *(DpoZeroCase(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing, attention="auto")
      for zero, ranks, bucket, tied, accumulation, checkpointing in (
          (2, 8, 20_000_000, True, 2, "full"), (2, 3, 500_000_000, False, 1, "none"), (1, 4, 2_000_000, False, 3, "full"), (1, 16, 500_000_000, True, 1, "none"))),
    *(DpoZeroCase(**SMALL, zero=3, ranks=ranks, family=family, tied=tied, accumulation=accumulation, checkpointing=checkpointing, sizes=sizes, attention=attention, serial=serial)
      for ranks, family, tied, accumulation, checkpointing, sizes, attention, serial in (
          (64, "llama", False, 2, "full", "", "flash", False), (3, "phi3", False, 1, "full", "auto", "auto", False), (4, "granite", True, 2, "none", SCARCE, "auto", True), (2, "gemma2", True, 1, "full", "auto", "math", False),
          (7, "gemma3_text", True, 2, "full", "", "auto", False), (1, "mistral", False, 1, "none", "", "flash", True))),
    *(DpoZeroCase(**SMALL, zero=3, ranks=ranks, offload=offload, precision=precision, batch=batch, checkpointing=checkpointing, accumulation=accumulation)
      for ranks, offload, precision, batch, checkpointing, accumulation in ((4, "params", "bf16-mixed", 1, "full", 1), (8, "optimizer", "fp16-mixed", 2, "none", 1), (1, "params", "fp16-mixed", 1, "full", 3))),
    *(DpoZeroCase(**SMALL, zero=3, ranks=ranks, lora_rank=rank, family=family, tied=tied, accumulation=accumulation, sizes=sizes, offload=offload, precision=precision, frozen_dtype=precision.removesuffix("-mixed"))
      for ranks, rank, family, tied, accumulation, sizes, offload, precision in (
          (2, 16, "llama", False, 1, AT_ONCE, "none", "bf16-mixed"), (3, 64, "qwen3", True, 3, "", "none", "fp16-mixed"), (4, 8, "mistral", False, 2, SCARCE, "none", "bf16-mixed"),
          (64, 16, "granite", True, 1, "auto", "params", "bf16-mixed"), (1, 8, "qwen2", False, 1, "", "none", "bf16-mixed"))),
    *(DpoZeroCase(**SMALL, zero=2, ranks=ranks, lora_rank=16, checkpointing="full", offload=offload, bucket=20_000_000) for ranks, offload in ((8, "none"), (4, "optimizer"))),
]
MORE += [
    *(DpoZeroCase(**SMALL, zero=3, ranks=ranks, lora_rank=16, family=family, tied=tied, checkpointing="full", sizes=sizes, attention="auto", serial=serial, accumulation=accumulation, optimizer=optimizer)
      for ranks, family, tied, sizes, serial, accumulation, optimizer in (
          (2, "phi3", False, "", False, 1, "adamw:fused"), (4, "granite", True, "auto", True, 3, "adamw:foreach"), (7, "gemma", True, SCARCE, False, 2, "adamw:fused"), (8, "qwen3", True, "", False, 1, "adamw:deepspeed"))),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=8, sizes=AT_ONCE, bucket=0, checkpointing="full", family="mistral"),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=2, offload="params", checkpointing="full", accumulation=2),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=64, offload="optimizer", family="phi3", attention="auto"),
    DpoZeroCase(**{**SMALL, "sequence": 320}, **{**QLORA, "frozen_dtype": "fp16"}, zero=3, ranks=1, serial=True, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    DpoZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=2, ranks=8, attention="auto", bucket=20_000_000, checkpointing="full", accumulation=3),
]


def settles_between_steps(case):
    """Whether the reference model's second forward, which gathers what stays whole, is the second step's: that is counted at the end of the first, as all later steps are to be alike."""
    return case.zero == 3 and case.lora_rank == 0 and case.accumulation == 1


def rehearsed(case, warm):
    events = rehearsed_by("dpo_train.py", case, warm)
    return without_second_step(events) if events and settles_between_steps(case) else events


def counted(case):
    events = counted_events(case)
    return without_settling(events) if settles_between_steps(case) else events


def drawn(seed, *only):
    return drawn_as(DpoZeroCase, seed, *only)


DPO_DEEPSPEED = comparison("dpo_deepspeed_events_test.py", DpoZeroCase, FEW, MORE, rehearsed, counted)


if __name__ == "__main__":
    sys.exit(deepspeed_events_test.main(DPO_DEEPSPEED, drawn, *sys.argv[1:]))
