"""Every allocation of a rehearsed run of transformers' Trainer against the counted ledger: size, stream, and what was freed since the one before; and the bytes of managed memory.

Loading is left out: the Trainer moves a model that was made on the host. Arguments: a part (recorded.py).
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent), str(FOLDER.parents[2] / "python")]
import vramfit  # noqa: E402
from compare_events import by_step  # noqa: E402
from dims import FamilyDims  # noqa: E402
from recorded import Comparison  # noqa: E402

PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin"))
STEPS = 3


@dataclasses.dataclass
class Case(FamilyDims):
    dora = False  # no field: only some tests have adapters with magnitudes
    tied: bool = False
    batch: int = 1
    accumulation: int = 1
    precision: str = "bf16-mixed"
    storage: str = "fp32"  # of bf16-mixed
    checkpointing: str = "none"
    optimizer: str = "adamw:fused"
    card: str = "H100-80GB"
    attention: str = "flash"  # auto: cuDNN's on some cards; math: eager
    family: str = "llama"
    lora_rank: int = 0
    lora_dropout: float = 0
    lora_targets: str = "all-linear"
    frozen_dtype: str = "bf16"
    quantization: str = "none"  # with lora_rank
    ranks: int = 1  # more: FSDP2 as accelerate sets it up, or DDP with no-shard
    sharding: str = "full-shard"
    checkpointed_by: str = "layers"
    offload: str = "none"  # of FSDP2
    zero: int = 0  # the stage of DeepSpeed
    bucket: int = 500_000_000  # of DeepSpeed, in elements; 0: auto, the hidden size squared
    overlap: bool = False  # of DeepSpeed: overlap_comm
    clip: bool = True  # without it, the Trainer makes the same allocations

    def cluster(self):
        return f"{self.ranks // 8}x8x{self.card}" if self.ranks > 8 else f"{self.ranks}x{self.card}"

    def runtime(self):
        if self.zero:
            return "deepspeed"
        return "pytorch" if self.ranks == 1 else "pytorch-ddp" if self.sharding == "no-shard" else f"pytorch-fsdp{self.fsdp_version()}"

    def fsdp_version(self):
        return 2

    def more_words(self):
        """Arguments of the script."""
        return ["--overlap", "on"] if self.overlap else []

    def job(self):
        fields = {"runtime": self.runtime(), "modeling": "transformers", "precision": self.precision,
                "attention": "auto" if self.precision == "fp32" and self.attention == "flash" else self.attention, "allocator": "expandable", "seq_len": self.sequence,
                "micro_batch": self.batch, "grad_accum": self.accumulation, "checkpointing": self.checkpointing, "optimizer": self.optimizer}
        if self.zero:
            fields |= {"sharding": ("shard-optimizer", "shard-grad-op", "full-shard")[self.zero - 1], "bucket_bytes": 2 * self.bucket or "auto", "overlap_comm": "on" if self.overlap else "off"}
        elif self.ranks > 1:
            fields["sharding"] = self.sharding
        if self.offload != "none":
            fields["offload"] = self.offload
        is_upcast = self.zero > 0 or (self.ranks > 1 and self.sharding != "no-shard")  # partitions of DeepSpeed; by accelerate, before FSDP2 shards
        if self.storage == "bf16" and not is_upcast:
            fields |= {"storage_dtype": "bf16", "state_dtype": "bf16"}
        if self.lora_rank:
            fields = {"method": "lora" if self.quantization == "none" else "qlora", **fields}  # first, as what a precision is depends on it
            fields |= {"quantization": self.quantization, "lora_rank": self.lora_rank, "lora_targets": self.lora_targets}
            fields |= {"lora_dropout": self.lora_dropout} if self.lora_dropout else {}
            fields |= {"frozen_dtype": self.frozen_dtype} if self.precision in ("bf16-mixed", "fp16-mixed") else {}
        return fields


TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 192, "vocabulary": 2050, "sequence": 128}
OSS = {"family": "gpt_oss", "window": 64, "attention": "auto"}  # eager, as it has no other code
SMALL = {"hidden": 1024, "layers": 3, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 16384, "sequence": 2048}

QLORA = {"lora_rank": 16, "quantization": "nf4-double", "frozen_dtype": "fp32"}

# Rehearsed in CI: one GPU, adapters over a base in 4 bits, DDP, FSDP2 with experts.
SAMPLE = [
    Case(**TINY, checkpointing="full", optimizer="adamw-8bit:paged", attention="auto"),
    Case(**{**TINY, "sequence": 640}, **QLORA, family="qwen2", lora_dropout=0.1, checkpointing="full"),
    Case(**TINY, ranks=2, sharding="no-shard", checkpointing="full", accumulation=2),
    Case(**TINY, family="mixtral", ranks=2, accumulation=2),
]
CASES = {
    "ci": [  # recorded
        *SAMPLE,
        Case(**{**TINY, "kv_heads": 1}, family="qwen2", tied=True, precision="bf16-pure", accumulation=3, optimizer="adamw:foreach", batch=2),
        Case(**{**TINY, "kv_heads": 4}, family="qwen3", precision="fp32", batch=3, tied=True, optimizer="adafactor"),
        Case(**TINY, lora_rank=4, lora_dropout=0.1, checkpointing="full", clip=False),
        Case(**TINY, ranks=7, tied=True, accumulation=4, checkpointing="full"),
        Case(**TINY, ranks=2, family="qwen3", precision="bf16-pure", sharding="shard-grad-op", optimizer="adamw:foreach"),
        Case(**TINY, ranks=3, offload="params", accumulation=2),
        Case(**TINY, ranks=3, sharding="no-shard", lora_rank=4),
        Case(**TINY, ranks=2, family="granite", lora_rank=4, lora_dropout=0.1, checkpointing="full"),
        *(Case(**{**TINY, "window": 64}, family=family, tied=True, attention="auto", checkpointing="full") for family in ("gemma2", "gemma2_uncapped")),
        Case(**TINY, family="qwen3_moe", experts=128, chosen=8, dense=(1,), batch=2, checkpointing="full"),
        Case(**TINY, precision="fp16-mixed", card="T4", attention="auto", accumulation=2, optimizer="adamw:foreach"),
        Case(**TINY, precision="fp16-mixed", ranks=2, checkpointing="full"),
        Case(**TINY, precision="fp16-mixed", ranks=2, offload="params", accumulation=2),
        Case(**{**TINY, "sequence": 640}, **QLORA, ranks=2, checkpointing="full"),
        Case(**TINY, **{**QLORA, "quantization": "nf4"}, family="qwen2", ranks=3, offload="params", tied=True, accumulation=2, card="A100-80GB"),
        Case(**{**TINY, "sequence": 96}, **QLORA, family="phi3", lora_dropout=0.1, card="RTX4090"),
        Case(**TINY, **OSS, batch=3, checkpointing="full", storage="bf16"),
        Case(**{**TINY, "kv_heads": 1}, **OSS, precision="bf16-pure", tied=True, batch=2, accumulation=2, optimizer="adamw-8bit:paged", experts=32, chosen=4),
        Case(**TINY, **OSS, ranks=2, sharding="no-shard", lora_rank=4, lora_dropout=0.1),
        Case(**TINY, **OSS, ranks=3, checkpointing="full", accumulation=2),
    ],
    "full": [
        *(Case(**SMALL, precision=precision, tied=tied, accumulation=accumulation)
          for precision in ("bf16-mixed", "bf16-pure") for tied in (False, True) for accumulation in (1, 3)),
        *(Case(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=tied) for tied in (False, True)),
        *(Case(**SMALL, precision=precision, tied=tied, checkpointing="full") for precision in ("bf16-mixed", "bf16-pure") for tied in (False, True)),
        Case(**{**SMALL, "kv_heads": 16}, precision="fp32", checkpointing="full", accumulation=2),
        *(Case(**SMALL, family=family, precision=precision, tied=True, checkpointing=checkpointing)
          for family, checkpointing in (("qwen2", "full"), ("qwen2", "none"), ("qwen3", "full"), ("qwen3", "none"), ("mistral", "full")) for precision in ("bf16-mixed", "bf16-pure")),
        *(Case(**SMALL, lora_rank=16, precision=precision, checkpointing=checkpointing, lora_dropout=dropout)
          for precision in ("bf16-mixed", "bf16-pure") for checkpointing in ("none", "full") for dropout in (0, 0.05)),
        Case(**SMALL, lora_rank=64, lora_targets="q_proj,v_proj", accumulation=3, batch=2),
        Case(**SMALL, lora_rank=8, lora_targets="q_proj,v_proj", optimizer="adamw:foreach", tied=True),
        Case(**SMALL, lora_rank=8, frozen_dtype="fp32"),
        Case(**SMALL, lora_rank=8, frozen_dtype="fp32", checkpointing="full"),
        Case(**{**SMALL, "kv_heads": 16}, lora_rank=8, precision="fp32"),
        Case(**SMALL, family="qwen2", lora_rank=8, lora_targets="gate_proj,down_proj", checkpointing="full"),
        Case(**SMALL, family="qwen3", lora_rank=8, card="RTX4090"),
        *(Case(**SMALL, **QLORA, checkpointing=checkpointing) for checkpointing in ("none", "full")),
        Case(**SMALL, **{**QLORA, "quantization": "nf4"}, lora_dropout=0.1, checkpointing="full", card="RTX4090"),
        Case(**SMALL, **{**QLORA, "quantization": "nf4"}, lora_targets="q_proj,v_proj", accumulation=3, batch=2),
        Case(**SMALL, **{**QLORA, "frozen_dtype": "bf16"}, card="RTX4090"),
        Case(**SMALL, **{**QLORA, "frozen_dtype": "bf16"}, checkpointing="full", tied=True),
        Case(**{**SMALL, "sequence": 1601}, **QLORA, family="qwen3", optimizer="adamw:foreach", lora_dropout=0.05, card="A100-80GB"),
        *(Case(**SMALL, **QLORA, family="qwen2", checkpointing=checkpointing, optimizer=optimizer, lora_dropout=dropout)
          for checkpointing, optimizer, dropout in (("none", "adamw:fused", 0), ("full", "adamw-8bit:paged", 0.1))),
        Case(**SMALL, **{**QLORA, "quantization": "nf4", "frozen_dtype": "bf16"}, family="qwen2", tied=True, accumulation=2, checkpointing="full"),
        Case(**SMALL, **QLORA, family="qwen2", lora_targets="q_proj,v_proj", ranks=2, sharding="no-shard", checkpointing="full"),
        *(Case(**SMALL, optimizer="adamw-8bit", precision=precision, tied=tied) for precision, tied in (("bf16-mixed", False), ("bf16-pure", True))),
        Case(**SMALL, **QLORA, optimizer="adamw-8bit", checkpointing="full"),
        *(Case(**SMALL, optimizer="adamw-8bit:paged", precision=precision, tied=tied) for precision, tied in (("bf16-mixed", True), ("bf16-pure", False))),
        *(Case(**SMALL, optimizer="adamw:paged", precision=precision, checkpointing="full") for precision in ("bf16-mixed", "bf16-pure")),
        Case(**SMALL, storage="bf16", family="qwen2", accumulation=2, optimizer="adamw-8bit:paged"),
        Case(**SMALL, **QLORA, optimizer="adamw-8bit:paged", checkpointing="full"),
        Case(**SMALL, lora_rank=64, optimizer="adamw:paged"),
        Case(**SMALL, ranks=2, sharding="no-shard", optimizer="adamw-8bit:paged", checkpointing="full"),
        Case(**SMALL, optimizer="adafactor", precision="bf16-pure", tied=True, checkpointing="full"),
        Case(**{**SMALL, "vocabulary": 152064}, optimizer="adafactor", storage="bf16", family="qwen3"),
        Case(**SMALL, optimizer="adafactor", lora_rank=16, batch=2),
        Case(**SMALL, **QLORA, optimizer="adafactor", checkpointing="full"),
        Case(**SMALL, ranks=2, sharding="no-shard", optimizer="adafactor", family="qwen2", accumulation=2),
        *(Case(**SMALL, storage="bf16", checkpointing=checkpointing, tied=True) for checkpointing in ("none", "full")),
        Case(**SMALL, storage="bf16", family="qwen3", accumulation=3, optimizer="adamw:foreach", card="RTX4090"),
        Case(**SMALL, storage="bf16", family="qwen2", batch=2, optimizer="adamw-8bit"),
        *(Case(**SMALL, attention="auto", precision=precision, checkpointing=checkpointing, tied=True)
          for precision, checkpointing in (("bf16-mixed", "none"), ("bf16-mixed", "full"), ("bf16-pure", "none"))),
        Case(**{**SMALL, "sequence": 1601, "heads": 4}, attention="auto", batch=3, accumulation=2),
        Case(**{**SMALL, "heads": 8}, attention="auto", card="B200", family="qwen3"),
        Case(**{**SMALL, "heads": 4}, attention="auto", card="B200"),
        Case(**SMALL, attention="auto", lora_rank=16, checkpointing="full", card="H200-141GB"),
        *(Case(**SMALL, ranks=4, sharding="no-shard", checkpointing=checkpointing, tied=True) for checkpointing in ("none", "full")),
        Case(**SMALL, ranks=4, sharding="no-shard", precision="bf16-pure", accumulation=3),
        Case(**{**SMALL, "kv_heads": 16}, ranks=2, sharding="no-shard", precision="fp32", checkpointing="full", accumulation=4),
        Case(**SMALL, ranks=2, lora_rank=4),
        Case(**SMALL, ranks=3, lora_rank=4, precision="bf16-pure", accumulation=3),
        Case(**SMALL, ranks=8, lora_rank=16, checkpointing="full", lora_targets="q_proj,v_proj", attention="auto"),
        Case(**SMALL, ranks=2, lora_rank=8, frozen_dtype="fp32", family="qwen3", tied=True, sharding="shard-grad-op", optimizer="adamw:foreach"),
        *(Case(**SMALL, lora_rank=16, checkpointing="full", lora_targets="q_proj,v_proj", precision=precision) for precision in ("bf16-mixed", "bf16-pure")),
        Case(**SMALL, ranks=16, sharding="no-shard", lora_rank=8, checkpointing="full"),
        Case(**SMALL, **QLORA, ranks=2, sharding="no-shard", checkpointing="full", accumulation=2),
        Case(**SMALL, ranks=2, sharding="no-shard", optimizer="adamw-8bit", family="qwen2"),
        *(Case(**SMALL, ranks=ranks, checkpointing=checkpointing, tied=tied, accumulation=accumulation, sharding=sharding)
          for ranks, checkpointing, tied, accumulation, sharding in (
              (8, "none", False, 1, "full-shard"), (8, "full", True, 2, "full-shard"), (2, "none", True, 3, "shard-grad-op"), (512, "full", False, 1, "full-shard"))),
        *(Case(**SMALL, ranks=2, sharding=sharding, clip=False) for sharding in ("full-shard", "no-shard")),
        *(Case(**SMALL, ranks=ranks, offload="params", precision=precision, checkpointing=checkpointing, tied=tied, accumulation=accumulation, sharding=sharding)
          for ranks, precision, checkpointing, tied, accumulation, sharding in (
              (4, "bf16-mixed", "full", False, 1, "full-shard"), (8, "bf16-mixed", "none", True, 3, "shard-grad-op"), (3, "bf16-pure", "full", False, 2, "full-shard"),
              (2, "bf16-pure", "none", True, 1, "shard-grad-op"), (512, "bf16-mixed", "full", False, 1, "full-shard"))),
        Case(**{**SMALL, "kv_heads": 16}, ranks=2, offload="params", precision="fp32", checkpointing="full"),
        *(Case(**SMALL, ranks=ranks, offload="params", lora_rank=8, frozen_dtype=frozen, checkpointing="full") for ranks, frozen in ((2, "bf16"), (4, "fp32"))),
        Case(**SMALL, ranks=4, offload="params", family="qwen3", checkpointing="full", optimizer="adamw:foreach", card="RTX4090"),
        *(Case(**TINY, ranks=2, storage="bf16", lora_rank=rank, tied=tied, accumulation=accumulation) for rank, tied, accumulation in ((0, False, 1), (0, True, 2), (4, False, 1))),
        Case(**SMALL, ranks=16, family="qwen2", checkpointing="full", checkpointed_by="fsdp", attention="auto"),
        Case(**SMALL, ranks=3, family="qwen3", precision="bf16-pure", tied=True, optimizer="adamw:foreach", accumulation=2),
        Case(**{**SMALL, "kv_heads": 16}, ranks=2, precision="fp32", checkpointing="full"),
        Case(**SMALL, ranks=4, sharding="shard-grad-op", card="RTX4090", batch=3, family="mistral"),
        *(Case(**SMALL, family="phi3", precision=precision, checkpointing=checkpointing, attention=attention)
          for precision, checkpointing, attention in (("bf16-mixed", "none", "flash"), ("bf16-pure", "full", "flash"), ("bf16-mixed", "full", "auto"))),
        Case(**{**SMALL, "rotated": 0.5, "window": 1024}, family="phi3", batch=2, accumulation=2, attention="auto", card="RTX4090"),
        Case(**{**SMALL, "kv_heads": 16, "rotated": 0.75}, family="phi3", precision="fp32", batch=2, tied=True),
        Case(**SMALL, family="phi3", lora_rank=8, lora_targets="qkv_proj,down_proj", checkpointing="full"),
        Case(**SMALL, **QLORA, family="phi3", lora_dropout=0.1),
        *(Case(**SMALL, family="granite", precision=precision, tied=tied, checkpointing=checkpointing, accumulation=accumulation)
          for precision, tied, checkpointing, accumulation in (
              ("bf16-mixed", True, "none", 2), ("bf16-mixed", False, "full", 1), ("bf16-pure", True, "full", 1), ("bf16-pure", False, "none", 3))),
        Case(**{**SMALL, "kv_heads": 16}, family="granite", precision="fp32", tied=True, checkpointing="full"),
        Case(**{**SMALL, "sequence": 512}, family="granite", precision="fp32", batch=2),
        Case(**{**SMALL, "sequence": 512}, family="granite", attention="math", batch=2, tied=True),
        *(Case(**SMALL, family="granite", lora_rank=8, tied=True, checkpointing=checkpointing) for checkpointing in ("none", "full")),
        Case(**SMALL, **QLORA, family="granite", lora_dropout=0.1, tied=True, checkpointing="full"),
        Case(**SMALL, ranks=3, family="granite", sharding="shard-grad-op"),
        Case(**SMALL, ranks=7, family="granite", lora_rank=4, checkpointing="full"),
        *(Case(**SMALL, ranks=ranks, family="granite", tied=True, checkpointing="full", sharding=sharding, attention="auto")
          for ranks, sharding in ((4, "full-shard"), (2, "no-shard"))),
        *(Case(**SMALL, family="gemma", precision=precision, tied=True, checkpointing=checkpointing, attention=attention)
          for precision, checkpointing, attention in (("bf16-mixed", "none", "auto"), ("bf16-pure", "full", "flash"), ("bf16-mixed", "full", "math"))),
        *(Case(**{**SMALL, "sequence": 512, "window": 256}, family="gemma2", precision=precision, tied=tied, checkpointing=checkpointing, batch=batch, attention="auto")
          for precision, tied, checkpointing, batch in (("bf16-mixed", True, "none", 1), ("bf16-pure", True, "full", 2), ("bf16-mixed", False, "full", 3), ("fp32", True, "none", 2))),
        Case(**{**SMALL, "sequence": 512}, family="gemma2", lora_rank=8, tied=True, checkpointing="full", attention="math"),
        Case(**{**SMALL, "kv_heads": 1, "sequence": 640}, **QLORA, attention="math", batch=2),
        Case(**{**SMALL, "sequence": 640}, **QLORA, family="gemma", tied=True, checkpointing="full"),
        Case(**{**SMALL, "sequence": 512}, family="gemma2", storage="bf16", tied=True, attention="auto", accumulation=2),
        *(Case(**{**SMALL, "layers": 7, "window": window}, family="gemma3_text", precision=precision, tied=True, checkpointing=checkpointing, card=card, batch=batch, attention="auto")
          for window, precision, checkpointing, card, batch in (
              (512, "bf16-mixed", "none", "H100-80GB", 1), (512, "bf16-pure", "full", "RTX4090", 2), (4096, "bf16-mixed", "full", "H100-80GB", 1), (512, "fp32", "full", "A100-80GB", 1))),
        Case(**{**SMALL, "sequence": 512, "window": 256}, family="gemma3_text", attention="math", batch=2),
        Case(**{**SMALL, "layers": 6, "window": 512}, family="gemma3_text", lora_rank=8, tied=True, attention="auto", checkpointing="full"),
        *(Case(**{**SMALL, "heads": heads, "window": 1024, "sequence": sequence}, family="mistral", attention="auto", card=card, precision=precision)
          for heads, sequence, card, precision in ((16, 2048, "RTX4090", "bf16-mixed"), (8, 2020, "A100-80GB", "bf16-pure"), (8, 2048, "RTX5090", "bf16-pure"), (4, 2047, "H100-80GB", "bf16-mixed"))),
        Case(**{**SMALL, "window": 1024}, family="mistral", precision="fp32", checkpointing="full"),
        *(Case(**{**SMALL, "sequence": 512, "kv_heads": kv_heads}, attention="math", precision=precision, batch=batch, checkpointing=checkpointing)
          for kv_heads, precision, batch, checkpointing in ((16, "bf16-pure", 2, "none"), (4, "bf16-mixed", 2, "full"), (1, "bf16-mixed", 2, "none"), (4, "fp32", 1, "none"))),
        *(Case(**{**SMALL, "sequence": 512, "kv_heads": kv_heads}, precision="fp32", batch=batch, family=family, checkpointing=checkpointing)
          for kv_heads, batch, family, checkpointing in ((4, 1, "llama", "none"), (1, 2, "qwen3", "full"), (4, 2, "phi3", "none"))),
        Case(**{**SMALL, "sequence": 512}, ranks=2, family="gemma2", tied=True, checkpointing="full", attention="auto"),
        Case(**{**SMALL, "window": 512}, ranks=4, family="gemma3_text", tied=True, attention="auto"),
        Case(**SMALL, ranks=2, family="phi3", attention="auto", accumulation=2),
        Case(**SMALL, ranks=2, sharding="no-shard", family="phi3", checkpointing="full"),
        Case(**{**SMALL, "sequence": 512}, ranks=2, sharding="no-shard", family="gemma3_text", tied=True, attention="auto"),
        *(Case(**{**SMALL, "kv_heads": 16}, family=family, precision="fp32", checkpointing=checkpointing, tied=tied)
          for family, checkpointing, tied in (("mixtral", "none", False), ("qwen3_moe", "full", True))),
        *(Case(**SMALL, family="mixtral", precision=precision, checkpointing=checkpointing, storage=storage, accumulation=accumulation, card=card)
          for precision, checkpointing, storage, accumulation, card in (
              ("bf16-mixed", "none", "fp32", 1, "H100-80GB"), ("bf16-mixed", "full", "fp32", 2, "RTX4090"), ("bf16-mixed", "full", "bf16", 1, "H100-80GB"),
              ("bf16-pure", "none", "fp32", 3, "H200-141GB"), ("bf16-pure", "full", "fp32", 1, "A100-80GB"))),
        *(Case(**SMALL, family="qwen3_moe", experts=experts, chosen=chosen, precision=precision, normalized=normalized, optimizer=optimizer, storage=storage)
          for experts, chosen, precision, normalized, optimizer, storage in (
              (128, 8, "bf16-mixed", True, "adamw:fused", "bf16"), (64, 8, "bf16-pure", False, "adamw:foreach", "fp32"), (7, 3, "bf16-mixed", True, "adamw-8bit:paged", "fp32"))),
        *(Case(**SMALL, family="mixtral", ranks=ranks, sharding=sharding, checkpointing=checkpointing, accumulation=accumulation, attention="auto")
          for ranks, sharding, checkpointing, accumulation in ((4, "no-shard", "none", 1), (2, "no-shard", "full", 3), (8, "full-shard", "full", 1), (3, "shard-grad-op", "none", 2))),
        Case(**SMALL, family="qwen3_moe", experts=128, chosen=8, ranks=16, checkpointing="full", optimizer="adamw:foreach", tied=True),
        Case(**SMALL, family="qwen3_moe", ranks=4, offload="params", checkpointing="full"),
        Case(**{**SMALL, "kv_heads": 16}, family="mixtral", ranks=2, precision="fp32"),
        Case(**{**SMALL, "sequence": 512, "window": 256}, family="mixtral", batch=2, attention="auto"),
        Case(**{**SMALL, "sequence": 512}, family="qwen3_moe", attention="math", dense=(0, 2)),
        *(Case(**TINY, **OSS, precision=precision, card=card, checkpointing=checkpointing, batch=2)
          for precision, card, checkpointing in (("fp32", "B200", "none"), ("bf16-mixed", "H100-80GB", "none"), ("bf16-pure", "RTX4090", "full"), ("bf16-pure", "H100-80GB", "none"))),
        *(Case(**{**TINY, "heads": heads, "kv_heads": kv_heads, "hidden": hidden, "sequence": sequence}, **OSS, precision=precision, card=card, checkpointing="full", batch=batch)  # long rows, more than 2 GiB of scores
          for heads, kv_heads, hidden, sequence, precision, card, batch in (
              (64, 8, 512, 4096, "bf16-pure", "H100-80GB", 1), (2, 2, 128, 8192, "bf16-mixed", "H100-80GB", 1), (2, 1, 128, 4096, "bf16-pure", "RTX4090", 3), (1, 1, 64, 5001, "fp32", "A100-80GB", 1))),
        Case(**{**TINY, "heads": 8, "kv_heads": 4, "hidden": 256, "sequence": 640, "layers": 7}, **OSS, card="L4", batch=9, tied=True, accumulation=3),
        *(Case(**TINY, **OSS, lora_rank=4, frozen_dtype=frozen, precision=precision, ranks=ranks, lora_targets=targets)
          for frozen, precision, ranks, targets in (("fp32", "bf16-mixed", 1, "all-linear"), ("bf16", "bf16-pure", 1, "all-linear"), ("bf16", "bf16-mixed", 2, "q_proj,v_proj"))),
        *(Case(**TINY, **OSS, ranks=ranks, sharding=sharding, offload=offload, precision=precision, optimizer=optimizer, checkpointed_by=by, checkpointing="full")
          for ranks, sharding, offload, precision, optimizer, by in (
              (4, "full-shard", "params", "bf16-mixed", "adamw:fused", "layers"), (16, "shard-grad-op", "none", "bf16-mixed", "adamw:foreach", "layers"), (2, "full-shard", "none", "bf16-pure", "adamw:fused", "fsdp"),
              (8, "no-shard", "none", "bf16-pure", "adamw:foreach", "layers"))),
        *(Case(**{**SMALL, "sequence": 640, "kv_heads": kv_heads}, precision="fp16-mixed", card=card, attention=attention, batch=batch, checkpointing=checkpointing, optimizer=optimizer)
          for kv_heads, card, attention, batch, checkpointing, optimizer in (
              (4, "T4", "auto", 1, "full", "adamw:fused"), (16, "T4", "auto", 3, "none", "adamw-8bit"), (4, "RTX2080Ti", "math", 2, "none", "adamw:fused"), (4, "A100-80GB", "flash", 1, "none", "adafactor"),
              (16, "H100-80GB", "auto", 2, "full", "adamw:paged"))),
        *(Case(**{**SMALL, "heads": heads, "kv_heads": heads, "sequence": sequence}, precision=precision, card="T4", attention="auto")
          for heads, sequence, precision in ((8, 623, "fp16-mixed"), (4, 1000, "fp16-mixed"), (8, 640, "fp32"))),
        *(Case(**{**SMALL, "sequence": 640}, precision="fp16-mixed", ranks=ranks, sharding=sharding, accumulation=accumulation, optimizer=optimizer, lora_rank=rank, frozen_dtype="fp16")
          for ranks, sharding, accumulation, optimizer, rank in (
              (4, "full-shard", 3, "adamw:fused", 0), (2, "shard-grad-op", 1, "adamw:foreach", 0), (3, "no-shard", 2, "adamw:fused", 0), (8, "full-shard", 1, "adamw:fused", 8), (2, "no-shard", 1, "adamw-8bit", 8))),
        *(Case(**{**SMALL, "sequence": 640}, **QLORA, precision="fp16-mixed", card="T4", attention="auto", family=family, checkpointing=checkpointing, optimizer=optimizer)
          for family, checkpointing, optimizer in (("llama", "full", "adamw:fused"), ("qwen2", "none", "adamw-8bit:paged"))),
        Case(**{**SMALL, "sequence": 512, "window": 256}, precision="fp16-mixed", card="T4", attention="auto", family="gemma2", tied=True, checkpointing="full"),
        Case(**{**SMALL, "sequence": 512, "window": 256}, precision="fp16-mixed", card="T4", attention="auto", family="mistral", batch=2),
        Case(**{**SMALL, "sequence": 512}, precision="fp16-mixed", family="qwen3_moe", checkpointing="full", card="A100-80GB"),
        *(Case(**{**SMALL, "sequence": sequence}, **{**QLORA, "frozen_dtype": frozen}, ranks=ranks, family=family, tied=tied, checkpointing=checkpointing, accumulation=accumulation, offload=offload, precision=precision, sharding=sharding, attention="auto")
          for sequence, frozen, ranks, family, tied, checkpointing, accumulation, offload, precision, sharding in (
              (640, "fp32", 3, "qwen2", False, "full", 2, "none", "bf16-mixed", "full-shard"), (700, "fp32", 4, "phi3", False, "none", 1, "none", "bf16-mixed", "full-shard"),
              (640, "bf16", 2, "llama", True, "full", 1, "params", "bf16-mixed", "full-shard"), (640, "fp32", 2, "granite", False, "none", 1, "params", "fp16-mixed", "full-shard"),
              (512, "fp32", 64, "llama", False, "full", 1, "none", "bf16-mixed", "full-shard"), (640, "fp32", 4, "gemma", True, "full", 1, "none", "bf16-mixed", "shard-grad-op"))),
        *(Case(**{**SMALL, "sequence": sequence}, **QLORA, family=family, batch=batch, card=card, attention="auto", precision=precision, checkpointing=checkpointing)  # few tokens
          for sequence, family, batch, card, precision, checkpointing in (
              (512, "llama", 1, "A100-80GB", "bf16-mixed", "none"), (64, "qwen2", 3, "H100-80GB", "bf16-mixed", "full"), (100, "llama", 1, "T4", "fp16-mixed", "none"),
              (50, "qwen3", 5, "RTX3090", "bf16-mixed", "full"), (256, "gemma", 1, "RTX5090", "bf16-mixed", "none"))),
        Case(**SMALL, precision="fp16-mixed", ranks=4, offload="params", optimizer="adamw:foreach", checkpointing="full"),
        Case(**{**TINY, "heads": 1, "kv_heads": 1}, precision="fp32", batch=3, checkpointing="full", family="qwen3"),  # a transposition that is no copy
        Case(**{**SMALL, "layers": 1}, batch=20, card="A100-80GB"),  # ids in tiles of another size
        Case(**SMALL, batch=4),
        Case(**{**SMALL, "sequence": 1000}, batch=3, optimizer="adamw:foreach"),
        Case(**SMALL, card="RTX4090"),
        Case(**{**TINY, "hidden": 128, "ffn": 200, "sequence": 4096}, batch=33, checkpointing="full"),  # sums over tokens by several thread blocks
        Case(**{**SMALL, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 4100}),
    ],
}


def finished(words):
    return subprocess.run([str(word) for word in words], text=True, capture_output=True, timeout=500, check=False,
                          env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def output_of(done):
    if done.returncode != 0:
        raise SystemExit((done.stdout + done.stderr)[-3000:])
    return done.stdout


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def config_file(case, folder):
    path = pathlib.Path(folder, "config.json")
    path.write_text(json.dumps(case.config(case.family, case.tied)), encoding="utf-8")
    return path


def script(case, folder, events, name="train.py"):
    """A script and its arguments; `events` is the file that it writes."""
    sharding = case.sharding if case.ranks > 1 and case.sharding != "no-shard" and case.zero == 0 else "none"
    return [str(word) for word in (
        FOLDER / name, "--config", config_file(case, folder), "--batch", case.batch, "--sequence", case.sequence, "--accumulation", case.accumulation, "--precision", case.precision,
        "--storage", case.storage, "--attention", case.attention, "--checkpointing", case.checkpointing, "--optimizer", case.optimizer,
        "--lora-rank", case.lora_rank, "--lora-dropout", case.lora_dropout, "--lora-targets", case.lora_targets, "--frozen-dtype", case.frozen_dtype, "--quantization", case.quantization,
        "--fsdp", sharding, "--fsdp-version", case.fsdp_version(), "--checkpointed-by", case.checkpointed_by, "--offload", case.offload, "--zero", case.zero, "--bucket", case.bucket, "--max-grad-norm", 1 if case.clip else 0, *case.more_words(), "--steps", STEPS, "--events", events)]


def libraries(*names):
    """A process that has imported them, of which each rehearsal is a fork."""
    os.environ |= {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "VRAMFIT_PROGRAM": str(PROGRAMS / "vramfit")}
    return vramfit.Warm(*(names or ("torch", "transformers", "peft", "bitsandbytes", "accelerate")))


def rehearsed_events(case, warm, name="train.py", ranks=0, more=()):
    """Of rank 0 of a script, with `more` arguments; None if the Trainer fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "events")
        words = [*script(case, folder, path, name), *more]
        if case.optimizer.endswith("torchao"):  # first tuned: Inductor times kernels that it meets for the first time
            warm.rehearse(words, gpus=case.cluster(), ranks=ranks)
        found = warm.rehearse(words, gpus=case.cluster(), ranks=ranks)
        return [*lines_of(path.read_text(encoding="utf-8")), ["managed", found.json["ranks"][0]["managed_bytes"]]] if path.exists() else None


def launched_events(case):
    """The same of ranks that torchrun starts."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "events")
        launcher = ["-m", "torch.distributed.run", "--nnodes", max(1, case.ranks // 8), "--nproc-per-node", min(8, case.ranks)]
        output_of(finished([PROGRAMS / "vramfit", "rehearse", "--gpus", case.cluster(), "--ranks", 0, "--", sys.executable, *launcher, *script(case, folder, path)]))
        return lines_of(path.read_text(encoding="utf-8"))


def count(case):
    """The finished dump_events: it exits with 1 and says why where the job has no rules."""
    fields = [f"{name}={value}" for name, value in case.job().items()] + ([] if case.clip else ["no-clip"])
    with tempfile.TemporaryDirectory() as folder:
        return finished([PROGRAMS / "dump_events", config_file(case, folder), case.cluster(), STEPS, *fields])


def counted_events(case):
    return lines_of(output_of(count(case)))


def other_precision(case):
    if case.quantization != "none":
        return dataclasses.replace(case, quantization="none")
    return dataclasses.replace(case, **({"batch": case.batch + 1} if case.card == "T4" else {"precision": "bf16-pure"}))  # a T4 has no bf16


TRAINER = Comparison(
    script=FOLDER / "events_test.py", case_type=Case, libraries=["transformers", "torch", "accelerate", "peft", "bitsandbytes"], sample=SAMPLE, few=CASES["ci"], more=CASES["full"],
    warm=libraries, rehearsed=rehearsed_events, counted=counted_events, changed=other_precision)


def launched_as_alone():
    """Whether ranks that torchrun starts allocate as rank 0 does in a rehearsal without a launcher."""
    case = next(case for case in CASES["ci"] if case.ranks > 1)
    with libraries() as warm:
        return by_step(launched_events(case)) == by_step(rehearsed_events(case, warm))


def main(part, *numbers):
    failed = TRAINER.run(part, *numbers)
    assert part != "live" or launched_as_alone(), "ranks that torchrun starts allocate otherwise"
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
