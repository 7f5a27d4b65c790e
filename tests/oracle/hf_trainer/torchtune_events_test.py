"""Every allocation of torchtune's recipes full_finetune_single_device and full_finetune_distributed against the counted ledger, as the recipe torchtune sets them up.

Arguments: a part (recorded.py). torchtune wants an environment of its own, $VRAMFIT_RECIPES_PYTHON (tests/rehearse/requirements-torchtune.txt).
"""

import dataclasses
import sys

from events_test import FOLDER, SMALL, TINY, Case, counted_events, libraries, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

LIBRARIES = ["torch", "torchtune", "torchao", "bitsandbytes"]


@dataclasses.dataclass
class TorchtuneCase(Case):
    precision: str = "bf16-pure"

    def job(self):
        sharded = {"wrap_embeddings": "off" if self.tied else "on"} if self.ranks > 1 else {}
        return {**super().job(), "modeling": "torchtune", "loss": "chunked:8", **sharded}


# Recorded, too.
FEW = [
    TorchtuneCase(**TINY),
]
MORE = [
    TorchtuneCase(**SMALL, checkpointing="full"),
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
