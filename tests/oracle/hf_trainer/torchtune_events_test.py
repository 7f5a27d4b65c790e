"""Every allocation of torchtune's recipes full_finetune_single_device and full_finetune_distributed against the counted ledger, as the recipe torchtune sets them up.

Arguments: a part (recorded.py). torchtune wants an environment of its own, $VRAMFIT_RECIPES_PYTHON (tests/rehearse/requirements-torchtune.txt).
"""

import dataclasses
import sys

from events_test import FOLDER, SMALL, TINY, Case, counted_events, libraries, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

LIBRARIES = ["torch", "torchtune", "bitsandbytes"]


@dataclasses.dataclass
class TorchtuneCase(Case):
    precision: str = "bf16-pure"

    def job(self):
        sharded = {"wrap_embeddings": "off" if self.tied else "on"} if self.ranks > 1 else {}
        return {**super().job(), "modeling": "torchtune", "loss": "chunked:8", **sharded}


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
]


def rehearsed(case, warm):
    """Of one GPU without a launcher."""
    return rehearsed_events(case, warm, "torchtune_train.py", 0 if case.ranks > 1 else None)


def longer(case):
    return dataclasses.replace(case, sequence=case.sequence + 8)


TORCHTUNE = Comparison(script=FOLDER / "torchtune_events_test.py", case_type=TorchtuneCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                       warm=lambda: libraries("torch", "transformers", "peft", "bitsandbytes", "torchtune"), rehearsed=rehearsed, counted=counted_events, changed=longer)


if __name__ == "__main__":
    sys.exit(TORCHTUNE.run(*sys.argv[1:]))
