"""Every allocation of TRL's SFTTrainer with DeepSpeed's ZeRO-1, ZeRO-2 and ZeRO-3 against the counted ledger: deepspeed_events_test.py's jobs with sft_events_test.py's trainer.

`recorded` compares with sft_deepspeed_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
`random COUNT SEED [lora]` draws jobs as deepspeed_events_test.py does.
"""

import dataclasses
import sys
import typing

import deepspeed_events_test
from deepspeed_events_test import AT_ONCE  # which puts the folders above on the path
from events_test import QLORA, SMALL, TINY
from trl_zero import SCARCE, TrlZeroCase, comparison, drawn_as, rehearsed_by


@dataclasses.dataclass
class SftZeroCase(TrlZeroCase):
    MODELING: typing.ClassVar[str] = "trl"
    packing: str = "none"  # wrapped: full rows, as without it

    def more_words(self):
        return ["--packing", self.packing, *super().more_words()]

    def job(self):
        return {**super().job(), "packing": "bfd" if self.packing == "bfd" else "none"}


MASKED = {**TINY, "attention": "auto"}  # flash attention takes none
# Recorded, too.
FEW = [
    SftZeroCase(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, batch=2, tied=True, optimizer="adamw:deepspeed"),
    SftZeroCase(**TINY, zero=1, ranks=1, bucket=100_000, accumulation=2, checkpointing="full", family="qwen3"),
    SftZeroCase(**TINY, zero=1, ranks=8, overlap=True, bucket=30_000, checkpointing="full"),
    SftZeroCase(**TINY, zero=2, ranks=3, offload="optimizer", bucket=30_000, accumulation=2, precision="fp16-mixed"),
    SftZeroCase(**TINY, zero=2, ranks=4, lora_rank=4, checkpointing="full", accumulation=2),
    SftZeroCase(**TINY, zero=1, ranks=2, lora_rank=4, lora_dropout=0.1, bucket=3_000, family="qwen2", tied=True),
    SftZeroCase(**TINY, zero=3, ranks=2, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=4, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=1, accumulation=2, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=3, tied=True, family="qwen2", sizes="auto", bucket=0, accumulation=2),
    SftZeroCase(**SMALL, zero=3, ranks=8, sizes=AT_ONCE, bucket=0, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=2, sizes=SCARCE, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=2, tied=True, sizes=SCARCE, accumulation=2),
    SftZeroCase(**SMALL, zero=3, ranks=4, offload="params", sizes="auto", bucket=0, checkpointing="full", optimizer="adamw:deepspeed", accumulation=2),
    SftZeroCase(**TINY, zero=3, ranks=2, lora_rank=4, accumulation=2),
    SftZeroCase(**TINY, zero=3, ranks=2, lora_rank=4, checkpointing="full"),
    SftZeroCase(**SMALL, zero=3, ranks=4, lora_rank=16, lora_dropout=0.05, checkpointing="full", sizes="auto", bucket=0, accumulation=2),
    SftZeroCase(**SMALL, zero=3, ranks=1, lora_rank=8, lora_targets="q_proj,v_proj", checkpointing="full", tied=True, family="qwen2"),
    SftZeroCase(**SMALL, zero=3, ranks=8, lora_rank=16, checkpointing="full", sizes=SCARCE),
    # Bases in 4 bits.
    SftZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, zero=2, ranks=2, bucket=3000, checkpointing="full"),
    SftZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=2, ranks=4, accumulation=2, offload="optimizer", checkpointing="full"),
    SftZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "quantization": "nf4"}, family="qwen2", zero=1, ranks=1, checkpointing="full", lora_dropout=0.1, tied=True),
    SftZeroCase(**{**TINY, "sequence": 320}, **QLORA, family="qwen3", zero=1, ranks=8, overlap=True, checkpointing="full", batch=2, optimizer="adamw:foreach"),
    SftZeroCase(**{**TINY, "sequence": 1300}, **{**QLORA, "quantization": "nf4", "frozen_dtype": "fp16"}, family="phi3", attention="auto", zero=2, ranks=3, precision="fp16-mixed", card="T4", bucket=0, optimizer="adamw:deepspeed"),
    SftZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=3, ranks=2, checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, zero=3, ranks=2),
    SftZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=4, checkpointing="full", accumulation=2, lora_dropout=0.05),
    SftZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "quantization": "nf4"}, zero=3, ranks=3, family="qwen2", tied=True, sizes="auto", bucket=0, checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=8, sizes=AT_ONCE, bucket=0, checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=1, offload="params", sizes=SCARCE, checkpointing="full", accumulation=2),
    # Packed rows, whose documents have masks.
    SftZeroCase(**MASKED, packing="bfd", zero=1, ranks=3, bucket=30_000, batch=2, accumulation=2, checkpointing="full"),
    SftZeroCase(**MASKED, packing="bfd", zero=2, ranks=2, bucket=30_000),
    SftZeroCase(**MASKED, packing="bfd", zero=3, ranks=2, batch=3, checkpointing="full"),
    SftZeroCase(**{**SMALL, "attention": "auto"}, packing="bfd", zero=3, ranks=4, lora_rank=16, accumulation=2, checkpointing="full"),
    SftZeroCase(**TINY, packing="wrapped", zero=2, ranks=2, batch=2),
    SftZeroCase(**TINY, zero=2, ranks=2, bucket=100_000, checkpointing="full"),  # the last one has another bucket in each step, which ZeRO-3 makes in loading
]
MORE = [
    *(SftZeroCase(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing, attention="auto")
      for zero, ranks, bucket, tied, accumulation, checkpointing in (
          (2, 8, 20_000_000, True, 2, "full"), (2, 3, 500_000_000, False, 1, "none"), (1, 4, 2_000_000, False, 3, "full"), (1, 16, 500_000_000, True, 1, "none"))),
    *(SftZeroCase(**SMALL, zero=3, ranks=ranks, family=family, tied=tied, accumulation=accumulation, checkpointing=checkpointing, sizes=sizes, attention=attention)
      for ranks, family, tied, accumulation, checkpointing, sizes, attention in (
          (64, "llama", False, 2, "full", "", "flash"), (3, "phi3", False, 1, "full", "auto", "auto"), (4, "granite", True, 2, "none", SCARCE, "auto"), (2, "gemma2", True, 1, "full", "auto", "math"),
          (7, "gemma3_text", True, 2, "full", "", "auto"))),
    *(SftZeroCase(**SMALL, zero=3, ranks=ranks, lora_rank=rank, family=family, tied=tied, accumulation=accumulation, checkpointing=checkpointing, sizes=sizes, offload=offload, precision=precision,
                  frozen_dtype=precision.removesuffix("-mixed"))
      for ranks, rank, family, tied, accumulation, checkpointing, sizes, offload, precision in (
          (2, 16, "llama", False, 1, "full", AT_ONCE, "none", "bf16-mixed"), (3, 64, "qwen3", True, 3, "full", "", "none", "fp16-mixed"), (4, 8, "mistral", False, 2, "none", SCARCE, "none", "bf16-mixed"),
          (64, 16, "granite", True, 1, "full", "auto", "params", "bf16-mixed"))),
]
MORE += [
    SftZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "frozen_dtype": "fp16"}, zero=3, ranks=2, precision="fp16-mixed", family="qwen3", tied=True, lora_targets="q_proj,v_proj", checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=4, offload="optimizer", family="phi3", attention="auto", optimizer="adamw:deepspeed"),
    SftZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=64, serial=True, family="granite", tied=True, attention="auto", checkpointing="full", batch=2),
    SftZeroCase(**{**SMALL, "sequence": 1601}, **QLORA, zero=2, ranks=8, attention="auto", bucket=20_000_000, checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=1, ranks=3, family="gemma", tied=True, attention="auto", accumulation=3),
]


MORE += [
    SftZeroCase(**{**SMALL, "sequence": 640, "attention": "auto"}, **QLORA, packing="bfd", zero=2, ranks=8, checkpointing="full", batch=2),
    SftZeroCase(**{**SMALL, "sequence": 1000, "attention": "auto"}, packing="bfd", zero=3, ranks=2, precision="fp16-mixed", card="T4", checkpointing="full", sizes="auto", bucket=0),
    SftZeroCase(**{**MASKED, "window": 64}, packing="bfd", zero=3, ranks=2, family="gemma2", tied=True, batch=2, checkpointing="full"),
    SftZeroCase(**{**SMALL, "sequence": 512, "attention": "math"}, packing="bfd", zero=1, ranks=4, family="qwen3", tied=True, batch=2, offload="optimizer"),
]


def rehearsed(case, warm):
    return rehearsed_by("sft_train.py", case, warm)


def drawn(seed, *only):
    return drawn_as(SftZeroCase, seed, *only)


SFT_DEEPSPEED = comparison("sft_deepspeed_events_test.py", SftZeroCase, FEW, MORE, rehearsed)


if __name__ == "__main__":
    sys.exit(deepspeed_events_test.main(SFT_DEEPSPEED, drawn, *sys.argv[1:]))
