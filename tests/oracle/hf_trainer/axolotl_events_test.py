"""events_test.py's comparison with axolotl's kernels for linears with adapters (lora_mlp_kernel, lora_qkv_kernel, lora_o_kernel): alone, beside Liger's, with DDP, with FSDP2 as axolotl sets it up, and with DeepSpeed's ZeRO-1 and ZeRO-2.

`live` and `record` need axolotl 0.19 and addict, but none of its other requirements, and DeepSpeed (tests/rehearse/requirements-recipes.txt). Arguments: a part (recorded.py).
"""

import dataclasses
import pathlib
import sys

from liger_events_test import LigerCase, counted, rehearsed
from events_test import QLORA, SMALL, TINY, libraries
from recorded import Comparison

ALL = "mlp,qkv,o"


@dataclasses.dataclass
class AxolotlCase(LigerCase):
    has_liger: bool = False
    kernels: str = ALL  # of axolotl
    reenters: bool = False  # use_reentrant, axolotl's default with gradient checkpointing

    def takes_over(self):
        """Whether axolotl sets up FSDP2 in accelerate's place: embeddings are the root's, and nothing is made fp32."""
        return self.runtime() == "pytorch-fsdp2"

    def more_words(self):
        return [*super().more_words(), *(["--use-reentrant", "on"] if self.reenters else []), *(["--axolotls-fsdp"] if self.takes_over() else []), *(["--axolotl", *self.kernels.split(",")] if self.kernels else [])]

    def job(self):
        fields = super().job() | ({"reentrant_checkpoints": "on"} if self.reenters else {})
        if self.takes_over():
            fields |= {"wrap_embeddings": "off"} | ({"storage_dtype": "bf16", "state_dtype": "bf16"} if self.storage == "bf16" else {})
        if self.kernels:
            off = ",".join(f"{part}=off" for part in ALL.split(",") if part not in self.kernels.split(","))
            fields["kernels"] = "+".join(filter(None, [fields.get("kernels"), ":".join(filter(None, ["axolotl", off]))]))
        return fields


LORA = {"lora_rank": 4, "frozen_dtype": "bf16"}
WIDE = {**TINY, "sequence": 640}  # enough tokens for products of 4 bits
QUANTIZED = {**QLORA, "frozen_dtype": "bf16"}
DDP = {"ranks": 2, "sharding": "no-shard"}
FEW = [
    AxolotlCase(**TINY, **LORA),
    AxolotlCase(**TINY, **LORA, lora_dropout=0.1, batch=2, accumulation=3, checkpointing="full"),
    AxolotlCase(**TINY, **LORA, family="qwen2", checkpointing="full", precision="bf16-pure"),
    AxolotlCase(**{**TINY, "kv_heads": 1}, lora_rank=4, precision="fp32", family="qwen3", batch=2),
    AxolotlCase(**TINY, **LORA, kernels="mlp", family="gemma", lora_dropout=0.1, tied=True, attention="auto"),
    AxolotlCase(**TINY, **LORA, kernels="qkv", family="mistral"),
    AxolotlCase(**TINY, **LORA, kernels="o", family="granite", lora_dropout=0.1, optimizer="adamw-8bit"),
    AxolotlCase(**TINY, **LORA, lora_targets="q_proj,v_proj,gate_proj,up_proj,down_proj"),
    AxolotlCase(**WIDE, **QUANTIZED, checkpointing="full"),
    AxolotlCase(**WIDE, **{**QUANTIZED, "quantization": "nf4"}, family="qwen2", lora_dropout=0.1, accumulation=2),
    AxolotlCase(**TINY, precision="fp16-mixed", lora_rank=4, frozen_dtype="fp16", card="T4", attention="auto"),
    AxolotlCase(**TINY, **LORA, **DDP, checkpointing="full", accumulation=2),
    AxolotlCase(**WIDE, **QUANTIZED, **DDP, lora_dropout=0.1),
    AxolotlCase(**TINY, **LORA, has_liger=True, checkpointing="full"),
    AxolotlCase(**{**TINY, "window": 64}, **LORA, has_liger=True, liger="fused_linear_cross_entropy=off", family="gemma2", attention="auto"),
    AxolotlCase(**TINY, **LORA, zero=2, ranks=2, bucket=100_000, checkpointing="full"),
    # FSDP2, also without adapters.
    AxolotlCase(**TINY, **LORA, ranks=2, checkpointing="full"),
    AxolotlCase(**TINY, **LORA, ranks=3, lora_dropout=0.1, accumulation=2, tied=True, family="qwen2"),
    AxolotlCase(**TINY, **LORA, ranks=2, sharding="shard-grad-op", optimizer="adamw:foreach", family="mistral", has_liger=True),
    AxolotlCase(**TINY, **LORA, ranks=2, kernels="mlp", lora_targets="gate_proj,up_proj,down_proj", family="gemma", tied=True, attention="auto"),
    AxolotlCase(**WIDE, **QUANTIZED, ranks=2, checkpointing="full"),
    AxolotlCase(**WIDE, **{**QUANTIZED, "quantization": "nf4"}, ranks=3, family="qwen2", lora_dropout=0.1, accumulation=3),
    AxolotlCase(**TINY, kernels="", storage="bf16", ranks=2, checkpointing="full", accumulation=2, has_liger=True),
    AxolotlCase(**TINY, kernels="", storage="bf16", ranks=3, sharding="shard-grad-op", tied=True),
    AxolotlCase(**TINY, kernels="", precision="bf16-pure", ranks=2, checkpointing="full"),
    AxolotlCase(**TINY, **LORA, ranks=2, checkpointing="full", reenters=True, accumulation=2),
    AxolotlCase(**TINY, kernels="mlp,qkv", zero=1, ranks=2, **LORA),  # last, as `changed` takes its kernels away
]
MORE = [
    *(AxolotlCase(**SMALL, **{**LORA, "lora_rank": 16}, checkpointing=checkpointing, lora_dropout=dropout, family=family)
      for checkpointing, dropout, family in (("none", 0, "llama"), ("full", 0.05, "qwen3"), ("full", 0, "gemma"))),
    AxolotlCase(**{**SMALL, "sequence": 640, "window": 256}, **LORA, family="gemma3_text", attention="auto", checkpointing="full"),
    AxolotlCase(**{**SMALL, "sequence": 512, "window": 256}, **LORA, family="gemma2", lora_dropout=0.1, tied=True, attention="auto", batch=2),
    *(AxolotlCase(**{**SMALL, "sequence": 640}, **QUANTIZED, family=family, checkpointing=checkpointing, lora_dropout=dropout, card=card, optimizer=optimizer)
      for family, checkpointing, dropout, card, optimizer in (("llama", "none", 0, "RTX4090", "adamw:fused"), ("qwen2", "full", 0.05, "A100-80GB", "adamw-8bit:paged"))),
    AxolotlCase(**SMALL, **{**LORA, "lora_rank": 64}, **DDP, accumulation=3),
    AxolotlCase(**TINY, **LORA, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2"),
    AxolotlCase(**TINY, **LORA, ranks=2, precision="bf16-pure"),
    AxolotlCase(**WIDE, **QUANTIZED, ranks=2, checkpointing="full", reenters=True),
    AxolotlCase(**TINY, kernels="", storage="bf16", ranks=2, checkpointing="full", reenters=True, accumulation=2),
    AxolotlCase(**TINY, kernels="", ranks=2, checkpointing="full"),
    AxolotlCase(**SMALL, **{**LORA, "lora_rank": 16}, ranks=8, checkpointing="full", accumulation=2),
    AxolotlCase(**{**SMALL, "sequence": 640}, **QUANTIZED, ranks=4, checkpointing="full", lora_dropout=0.05, card="RTX4090", has_liger=True),
    AxolotlCase(**{**TINY, "window": 64}, **LORA, ranks=2, has_liger=True, liger="fused_linear_cross_entropy=off", family="gemma2", attention="auto", checkpointing="full"),
    AxolotlCase(**TINY, precision="fp16-mixed", lora_rank=4, frozen_dtype="fp16", ranks=2, accumulation=2),
    AxolotlCase(**SMALL, kernels="", storage="bf16", ranks=8, checkpointing="full", family="qwen3", optimizer="adamw:foreach"),
    AxolotlCase(**{**SMALL, "kv_heads": 16, "sequence": 1601}, **LORA, attention="math", has_liger=True, liger="rope=off", batch=2),
]
AXOLOTL = Comparison(
    script=pathlib.Path(__file__).resolve(), case_type=AxolotlCase, libraries=["axolotl", "liger-kernel", "deepspeed", "transformers", "torch", "triton", "accelerate", "peft", "bitsandbytes"], are_optional=True,
    few=FEW, more=MORE, warm=libraries, rehearsed=rehearsed, counted=counted, changed=lambda case: dataclasses.replace(case, kernels=""))

if __name__ == "__main__":
    sys.exit(AXOLOTL.run(*sys.argv[1:]))
