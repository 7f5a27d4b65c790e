"""Every allocation of torchtune's recipes for all weights, LoRA, DoRA and QLoRA, on one GPU and distributed, against the counted ledger, as the recipe torchtune sets them up.

Arguments: a part (recorded.py). torchtune wants an environment of its own, $VRAMFIT_RECIPES_PYTHON (tests/rehearse/requirements-torchtune.txt).
"""

import dataclasses
import sys

from events_test import FOLDER, SMALL, TINY, Case, counted_events, libraries, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

LIBRARIES = ["torch", "torchtune", "bitsandbytes"]  # the tests' own torchao is newer than torchtune takes


@dataclasses.dataclass
class TorchtuneCase(Case):
    precision: str = "bf16-pure"
    wraps_ends: bool = True  # custom_sharded_layers, of weights that aren't tied
    rotary_positions: int = 0  # max_seq_len; 0: as the sequence
    in_backward: bool = False  # optimizer_in_bwd
    dora: bool = False  # use_dora
    activations: bool = False  # enable_activation_offloading

    def job(self):
        sharded = {"wrap_embeddings": "on" if self.wraps_ends and not self.tied else "off"} if self.ranks > 1 else {}
        rotations = {"rotary_positions": self.rotary_positions} if self.rotary_positions else {}
        return {**super().job(), "modeling": "torchtune", "loss": "chunked:8", **sharded, **rotations, "optimizer_in_backward": "on" if self.in_backward else "off", **({"dora": "on"} if self.dora else {}), **({"offload": "activations"} if self.activations else {})}

    def words(self):
        """Arguments of the script that others lack."""
        return ["--rotary-positions", self.rotary_positions, *([] if self.wraps_ends else ["--whole-ends"]), *(["--in-backward"] if self.in_backward else []), *(["--dora"] if self.dora else []), *(["--activations"] if self.activations else [])]


QLORA = {"lora_rank": 8, "quantization": "nf4-double"}
OFFLOADED = {"activations": True, "checkpointing": "full"}
FOURS = {**TINY, "hidden": 256, "ffn": 512}  # torchao splits rows of 4 bits alone that are so many

# Recorded, too.
FEW = [
    TorchtuneCase(**TINY),
    TorchtuneCase(**TINY, batch=2, accumulation=3),
    TorchtuneCase(**{**TINY, "sequence": 100}, batch=3, checkpointing="full", tied=True),
    TorchtuneCase(**{**TINY, "kv_heads": 1}, family="qwen2", tied=True, accumulation=2, clip=False),
    TorchtuneCase(**TINY, family="qwen2", batch=2, optimizer="adamw:foreach"),
    TorchtuneCase(**{**TINY, "kv_heads": 4}, family="mistral", attention="auto", optimizer="adamw-8bit:paged"),
    TorchtuneCase(**{**TINY, "window": 64}, family="mistral", card="RTX4090", attention="auto", optimizer="adamw:paged"),
    TorchtuneCase(**{**TINY, "sequence": 9}, card="A100-80GB", optimizer="adamw-8bit", checkpointing="full"),
    TorchtuneCase(**TINY, ranks=2),
    TorchtuneCase(**TINY, ranks=3, accumulation=3, checkpointing="full"),
    TorchtuneCase(**TINY, ranks=4, sharding="shard-grad-op", family="qwen2", optimizer="adamw:foreach"),
    TorchtuneCase(**TINY, ranks=5, accumulation=2, tied=True, batch=2, family="qwen2"),
    TorchtuneCase(**{**TINY, "kv_heads": 4}, ranks=7, family="mistral", attention="auto", clip=False),
    TorchtuneCase(**TINY, ranks=8, tied=True, checkpointing="full"),
    TorchtuneCase(**TINY, ranks=4, wraps_ends=False),
    TorchtuneCase(**{**TINY, "sequence": 9}, batch=3),
    TorchtuneCase(**TINY, lora_rank=8),
    TorchtuneCase(**TINY, lora_rank=4, lora_dropout=0.1, lora_targets="q_proj,v_proj", checkpointing="full", accumulation=2, batch=2, optimizer="adamw-8bit:paged", clip=False),
    TorchtuneCase(**{**TINY, "sequence": 100}, family="qwen2", tied=True, lora_rank=16, batch=3, card="A100-80GB"),
    TorchtuneCase(**{**TINY, "kv_heads": 4, "sequence": 9}, family="mistral", attention="auto", lora_rank=8, lora_targets="o_proj", batch=3),
    TorchtuneCase(**TINY, family="qwen2", lora_rank=64, lora_targets="k_proj,gate_proj,up_proj,down_proj", checkpointing="full", optimizer="adamw:foreach", accumulation=3),
    TorchtuneCase(**TINY, ranks=2, lora_rank=8),
    TorchtuneCase(**TINY, ranks=3, family="qwen2", lora_rank=4, lora_dropout=0.1, checkpointing="full", accumulation=2, batch=2),
    TorchtuneCase(**TINY, ranks=5, tied=True, sharding="shard-grad-op", lora_rank=8, lora_targets="q_proj,v_proj", optimizer="adamw:foreach"),
    TorchtuneCase(**{**TINY, "kv_heads": 1}, ranks=8, family="mistral", wraps_ends=False, lora_rank=8, attention="auto", clip=False),
    TorchtuneCase(**FOURS, **QLORA),
    TorchtuneCase(**FOURS, **QLORA, lora_dropout=0.1, lora_targets="q_proj,v_proj,o_proj", checkpointing="full", accumulation=2, card="RTX4090", attention="auto", optimizer="adamw-8bit:paged"),
    TorchtuneCase(**FOURS, **QLORA, family="mistral", batch=2, lora_targets="q_proj,gate_proj,up_proj,down_proj", optimizer="adamw:foreach", clip=False),
    TorchtuneCase(**FOURS, **QLORA, ranks=2, checkpointing="full", attention="auto"),
    TorchtuneCase(**{**FOURS, "kv_heads": 4}, **QLORA, ranks=4, tied=True, sharding="shard-grad-op", lora_dropout=0.1, accumulation=3, optimizer="adamw:foreach"),
    TorchtuneCase(**TINY, family="qwen2", lora_rank=8, rotary_positions=1024),
    TorchtuneCase(**TINY, in_backward=True, clip=False),
    TorchtuneCase(**TINY, in_backward=True, clip=False, tied=True, optimizer="adamw-8bit:paged", batch=2, checkpointing="full"),
    TorchtuneCase(**TINY, in_backward=True, clip=False, ranks=3, tied=True, optimizer="adamw:foreach", checkpointing="full"),
    TorchtuneCase(**TINY, precision="fp32", attention="auto", batch=2),
    TorchtuneCase(**TINY, precision="fp32", attention="auto", ranks=2, family="qwen2", lora_rank=8, accumulation=2),
    TorchtuneCase(**{**TINY, "kv_heads": 1}, family="gemma", tied=True, attention="auto", checkpointing="full"),
    TorchtuneCase(**TINY, family="gemma", tied=True, ranks=2, lora_rank=8, accumulation=2),
    TorchtuneCase(**TINY, family="phi3", batch=2, attention="auto"),
    TorchtuneCase(**FOURS, **QLORA, family="phi3", ranks=2, checkpointing="full"),
    TorchtuneCase(**TINY, lora_rank=8, dora=True, checkpointing="full", batch=2, lora_dropout=0.1, lora_targets="q_proj,v_proj"),
    TorchtuneCase(**TINY, lora_rank=8, dora=True, family="qwen2", accumulation=2, tied=True),
    TorchtuneCase(**TINY, lora_rank=8, dora=True, ranks=3, optimizer="adamw:foreach"),
    TorchtuneCase(**{**TINY, "window": 64}, family="gemma2", tied=True, attention="auto", batch=2, checkpointing="full"),
    TorchtuneCase(**{**TINY, "kv_heads": 4}, family="gemma2", tied=True, attention="auto", ranks=2, lora_rank=8, accumulation=2),
    TorchtuneCase(**{**TINY, "layers": 5}, **OFFLOADED, batch=2, accumulation=2),
    TorchtuneCase(**{**TINY, "layers": 4}, **OFFLOADED, precision="fp32", attention="auto", ranks=2, tied=True),
    TorchtuneCase(**{**FOURS, "layers": 4}, **OFFLOADED, **QLORA, lora_dropout=0.1),
    TorchtuneCase(**{**TINY, "layers": 3}, **OFFLOADED, family="gemma", tied=True, attention="auto"),
    TorchtuneCase(**{**TINY, "layers": 3}, **OFFLOADED, lora_rank=8, lora_dropout=0.1, family="qwen2", tied=True, accumulation=2),
    TorchtuneCase(**{**TINY, "layers": 3}, **OFFLOADED, lora_rank=8, ranks=3, accumulation=2, batch=2),
    TorchtuneCase(**{**TINY, "layers": 3}, **OFFLOADED, in_backward=True, clip=False, batch=2),
]
MORE = [
    *(TorchtuneCase(**SMALL, checkpointing=checkpointing, attention="auto", card=card, tied=tied, batch=batch)
      for checkpointing, card, tied, batch in (("full", "H100-80GB", False, 1), ("none", "B200", True, 2), ("full", "A100-80GB", True, 3), ("none", "RTX3090", False, 1))),
    TorchtuneCase(**{**SMALL, "sequence": 2047}, family="qwen2", optimizer="adamw:paged", batch=3, card="RTX4090"),
    TorchtuneCase(**{**SMALL, "kv_heads": 16, "sequence": 4100}, family="qwen2", tied=True, checkpointing="full", accumulation=4, optimizer="adamw-8bit:paged"),
    TorchtuneCase(**{**SMALL, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 4100}),
    *(TorchtuneCase(**SMALL, ranks=ranks, sharding=sharding, accumulation=accumulation, tied=tied, attention="auto", batch=batch, checkpointing=checkpointing, card=card)
      for ranks, sharding, accumulation, tied, batch, checkpointing, card in (
          (4, "full-shard", 1, False, 2, "none", "H100-80GB"), (8, "full-shard", 2, True, 1, "full", "B200"), (16, "shard-grad-op", 3, False, 1, "full", "A100-80GB"),
          (2, "shard-grad-op", 1, True, 3, "none", "RTX4090"), (64, "full-shard", 1, False, 1, "full", "H100-80GB"))),
    TorchtuneCase(**SMALL, ranks=4, family="qwen2", checkpointing="full", clip=False, optimizer="adamw:foreach"),
    *(TorchtuneCase(**SMALL, family=family, tied=tied, lora_rank=rank, lora_dropout=dropout, lora_targets=targets, quantization=quantization, checkpointing=checkpointing, batch=batch,
                    ranks=ranks, sharding=sharding, accumulation=accumulation, card=card, attention="auto", optimizer="adamw:fused")
      for family, tied, rank, dropout, targets, quantization, checkpointing, batch, ranks, sharding, accumulation, card in (
          ("llama", False, 64, 0, "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "none", "none", 2, 1, "full-shard", 1, "H100-80GB"), ("qwen2", True, 8, 0.05, "all-linear", "none", "full", 1, 1, "full-shard", 4, "RTX4090"),
          ("mistral", False, 16, 0, "all-linear", "none", "full", 1, 64, "full-shard", 2, "H100-80GB"), ("llama", True, 8, 0.1, "q_proj,v_proj", "none", "none", 3, 4, "shard-grad-op", 1, "B200"),
          ("llama", False, 16, 0, "all-linear", "nf4-double", "full", 1, 1, "full-shard", 2, "RTX4090"), ("mistral", False, 8, 0.1, "q_proj,v_proj", "nf4-double", "none", 2, 1, "full-shard", 1, "H100-80GB"),
          ("llama", True, 64, 0, "all-linear", "nf4-double", "full", 1, 8, "full-shard", 1, "A100-80GB"), ("mistral", False, 8, 0.1, "all-linear", "nf4-double", "none", 1, 16, "shard-grad-op", 3, "H100-80GB"))),
    *(TorchtuneCase(**SMALL, family=family, tied=tied, precision=precision, checkpointing=checkpointing, batch=batch, ranks=ranks, card=card, attention="auto", lora_rank=rank, dora=dora,
                    in_backward=in_backward, clip=not in_backward)
      for family, tied, precision, checkpointing, batch, ranks, card, rank, dora, in_backward in (
          ("gemma", True, "bf16-pure", "full", 1, 1, "H100-80GB", 0, False, False), ("gemma", True, "bf16-pure", "none", 2, 4, "A100-80GB", 8, False, False),
          ("phi3", False, "bf16-pure", "none", 1, 1, "RTX4090", 0, False, False), ("phi3", False, "fp32", "full", 1, 8, "H100-80GB", 0, False, True),
          ("llama", True, "fp32", "none", 2, 1, "H100-80GB", 0, False, False), ("qwen2", False, "bf16-pure", "full", 3, 1, "B200", 0, False, True),
          ("mistral", False, "bf16-pure", "none", 1, 16, "H100-80GB", 0, False, True), ("llama", False, "bf16-pure", "full", 1, 1, "H100-80GB", 16, True, False),
          ("mistral", False, "bf16-pure", "none", 2, 4, "RTX4090", 64, True, False),
          ("gemma2", True, "bf16-pure", "full", 1, 1, "H100-80GB", 0, False, False), ("gemma2", True, "bf16-pure", "none", 2, 8, "A100-80GB", 16, False, False))),
    TorchtuneCase(**{**SMALL, "layers": 4}, **OFFLOADED, precision="fp32", attention="auto", lora_rank=8, card="A100-80GB"),
]


def rehearsed(case, warm):
    """Of one GPU without a launcher."""
    return rehearsed_events(case, warm, "torchtune_train.py", 0 if case.ranks > 1 else None, [str(word) for word in case.words()])


def longer(case):
    return dataclasses.replace(case, sequence=case.sequence + 8)


TORCHTUNE = Comparison(script=FOLDER / "torchtune_events_test.py", case_type=TorchtuneCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                       warm=lambda: libraries("torch", "transformers", "peft", "bitsandbytes", "torchtune"), rehearsed=rehearsed, counted=counted_events, changed=longer)


if __name__ == "__main__":
    sys.exit(TORCHTUNE.run(*sys.argv[1:]))
