"""Every allocation of Trainers whose attention is the flash-attn package's (`attn_implementation="flash_attention_2"`) against the counted ledger, as sft_packing_events_test.py compares those of PyTorch's kernels.

`recorded` compares with flash_attn_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON, in which ../flash_attn/build.py has installed
the package: its real code around kernels that launch nothing.
"""

import dataclasses
import sys

from liger_events_test import FOLDER, FSDP1, QUANTIZED_BF16, LigerCase, counted, rehearsed  # which puts the folder above on the path
from events_test import QLORA, SMALL, TINY, libraries, other_precision
from recorded import Comparison
from trl_zero import TRAINED_WITH


@dataclasses.dataclass
class FlashAttnCase(LigerCase):
    attention: str = "flash-attn"
    packing: str = "none"
    use_reentrant: str = "default"
    has_liger: bool = False

    def more_words(self):
        return [*super().more_words(), "--packing", self.packing, "--use-reentrant", self.use_reentrant]

    def job(self):
        return {**super().job(), "packing": self.packing, "reentrant_checkpoints": "on" if self.use_reentrant == "on" else "off"}


PACKED = {"trainer": "trl", "packing": "bfd"}
# Recorded, too.
FEW = [
    FlashAttnCase(**TINY),
    FlashAttnCase(**TINY, batch=2, checkpointing="full", card="RTX4090", tied=True),
    FlashAttnCase(**TINY, precision="bf16-pure", family="qwen3", checkpointing="full", accumulation=2),
    FlashAttnCase(**TINY, family="phi3", batch=2),
    FlashAttnCase(**{**TINY, "window": 64}, family="mistral", checkpointing="full"),
    FlashAttnCase(**{**TINY, "window": 64}, family="gemma2", tied=True, batch=2),
    FlashAttnCase(**{**TINY, "window": 64}, family="gemma3_text", tied=True, checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd"),
    FlashAttnCase(**TINY, packing="bfd", batch=3, checkpointing="full", accumulation=2),
    FlashAttnCase(**TINY, **PACKED),
    FlashAttnCase(**TINY, **PACKED, batch=3, checkpointing="full", accumulation=2, card="RTX4090", tied=True),
    FlashAttnCase(**{**TINY, "window": 64}, **PACKED, family="gemma2", tied=True, batch=2, checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd", family="phi3", batch=2, use_reentrant="on", checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd", lora_rank=4, frozen_dtype="bf16", ranks=2, sharding="no-shard", checkpointing="full", batch=2),
    FlashAttnCase(**TINY, packing="bfd", ranks=2, zero=3, batch=2, use_reentrant="on", checkpointing="full"),
    FlashAttnCase(**TINY, **PACKED, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    FlashAttnCase(**TINY, **PACKED, ranks=2, zero=2, bucket=100_000, checkpointing="full"),
    FlashAttnCase(**TINY, **PACKED, has_liger=True, checkpointing="full"),
    FlashAttnCase(**TINY, trainer="trl-dpo", batch=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd", has_liger=True, family="phi3", batch=2),
]
MORE = [
    *(FlashAttnCase(**{**SMALL, "sequence": sequence, "heads": heads, "kv_heads": kv_heads, "layers": 1}, batch=batch, card=card, precision=precision)  # keys in parts, heads of many widths
      for sequence, heads, kv_heads, batch, card, precision in (
          (4096, 16, 4, 1, "H100-80GB", "bf16-mixed"), (1000, 4, 4, 1, "B200", "bf16-mixed"), (2049, 8, 1, 3, "A100-80GB", "bf16-pure"), (700, 32, 8, 2, "RTX3090", "bf16-mixed"), (5001, 4, 2, 1, "RTX4090", "fp16-mixed"))),
    FlashAttnCase(**{**SMALL, "hidden": 1152, "heads": 6, "kv_heads": 2}, checkpointing="full"),
    FlashAttnCase(**SMALL, storage="bf16", family="qwen2", checkpointing="full", batch=2),
    *(FlashAttnCase(**{**SMALL, "window": 512}, family=family, batch=batch, checkpointing=checkpointing, tied=True, card=card)
      for family, batch, checkpointing, card in (("mistral", 2, "none", "H100-80GB"), ("phi3", 1, "full", "RTX4090"), ("gemma2", 1, "full", "A100-80GB"), ("gemma3_text", 2, "none", "H100-80GB"))),
    FlashAttnCase(**SMALL, family="granite", checkpointing="full"),
    FlashAttnCase(**SMALL, family="mixtral", checkpointing="full"),
    FlashAttnCase(**SMALL, lora_rank=16, frozen_dtype="bf16", checkpointing="full"),
    FlashAttnCase(**SMALL, lora_rank=8, frozen_dtype="fp32", family="phi3"),
    FlashAttnCase(**{**SMALL, "sequence": 640}, **QLORA, family="qwen2", checkpointing="full", batch=2),
    FlashAttnCase(**SMALL, ranks=2, sharding="no-shard", checkpointing="full", accumulation=2),
    FlashAttnCase(**SMALL, ranks=4, checkpointing="full"),
    FlashAttnCase(**{**SMALL, "window": 512}, ranks=4, family="mistral"),
    FlashAttnCase(**SMALL, ranks=2, zero=2, checkpointing="full"),
    FlashAttnCase(**SMALL, ranks=4, zero=3, checkpointing="full", family="phi3"),
    *(FlashAttnCase(**{**SMALL, "sequence": sequence}, **PACKED, family=family, batch=batch, checkpointing=checkpointing, card=card)
      for sequence, family, batch, checkpointing, card in ((2048, "llama", 1, "full", "H100-80GB"), (1000, "phi3", 3, "full", "A100-80GB"), (2049, "gemma3_text", 2, "none", "RTX4090"), (512, "gemma2", 9, "full", "H100-80GB"))),
    FlashAttnCase(**SMALL, **PACKED, lora_rank=16, frozen_dtype="bf16", checkpointing="full", batch=4),
    FlashAttnCase(**{**SMALL, "sequence": 640}, **QLORA, **PACKED, checkpointing="full", batch=2),
    FlashAttnCase(**SMALL, **PACKED, ranks=2, sharding="no-shard", batch=2, checkpointing="full"),
    FlashAttnCase(**SMALL, **PACKED, ranks=4, batch=2, checkpointing="full", accumulation=2),
    FlashAttnCase(**SMALL, **PACKED, precision="bf16-pure", batch=2, family="qwen3"),
    FlashAttnCase(**SMALL, **PACKED, precision="fp16-mixed", batch=2, checkpointing="full"),
    *(FlashAttnCase(**SMALL, packing="bfd", family=family, batch=batch, checkpointing=checkpointing, precision=precision, lora_rank=rank, frozen_dtype="bf16")
      for family, batch, checkpointing, precision, rank in (("phi3", 1, "none", "bf16-mixed", 0), ("phi3", 3, "full", "bf16-pure", 0), ("gemma2", 2, "none", "bf16-mixed", 0), ("llama", 4, "full", "bf16-mixed", 16))),
    FlashAttnCase(**{**SMALL, "sequence": 640}, **QLORA, packing="bfd", checkpointing="full", batch=2),
    *(FlashAttnCase(**SMALL, packing="bfd", ranks=ranks, sharding=sharding, batch=2, checkpointing="full", accumulation=2) for ranks, sharding in ((2, "no-shard"), (4, "full-shard"))),
    *(FlashAttnCase(**SMALL, **packing, ranks=ranks, zero=zero, batch=2, checkpointing="full", lora_rank=rank, frozen_dtype="bf16")
      for packing in ({"packing": "bfd"}, PACKED) for ranks, zero, rank in ((2, 2, 0), (4, 3, 0), (2, 3, 8))),
    *(FlashAttnCase(**TINY, **packing, **FSDP1, batch=batch, checkpointing="full", lora_rank=rank, has_liger=has_liger)
      for packing, batch, rank, has_liger in (({}, 1, 0, False), ({"packing": "bfd"}, 2, 4, False), (PACKED, 2, 0, True))),
    FlashAttnCase(**QUANTIZED_BF16, **PACKED, **FSDP1, checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd", ranks=2, offload="params", batch=2, checkpointing="full"),
    FlashAttnCase(**TINY, packing="bfd", ranks=2, has_liger=True, batch=2, checkpointing="full", use_reentrant="on"),
    FlashAttnCase(**TINY, trainer="trl-reward", batch=2),
    FlashAttnCase(**TINY, trainer="trl-grpo", batch=2, reference=True),
    FlashAttnCase(**{**TINY, "window": 64}, trainer="trl-dpo", batch=2, family="gemma2", tied=True),
]


FLASH_ATTN = Comparison(
    script=FOLDER / "flash_attn_events_test.py", case_type=FlashAttnCase, libraries=["flash-attn", "deepspeed", "trl", "transformers", "torch", "accelerate", "peft", "bitsandbytes", "datasets"], are_optional=True,
    few=FEW, more=MORE, warm=lambda: libraries(*TRAINED_WITH, "flash_attn"), rehearsed=rehearsed, counted=counted, changed=other_precision)


if __name__ == "__main__":
    sys.exit(FLASH_ATTN.run(*sys.argv[1:]))
