"""Every allocation of TRL's SFTTrainer with packed rows against the counted ledger, as sft_events_test.py compares those of rows that aren't.

`recorded` compares with sft_packing_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON, as sft_events_test.py does.
"""

import dataclasses
import sys

from sft_events_test import FOLDER, LIBRARIES, QLORA, SMALL, TINY, SftCase, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison


@dataclasses.dataclass
class PackedCase(SftCase):
    packing: str = "bfd"

    def job(self):
        return {**super().job(), "packing": "bfd" if self.packing == "bfd" else "none"}


# Recorded, too.
AUTO = {**TINY, "attention": "auto"}  # flash attention takes no mask
FEW = [
    PackedCase(**AUTO),
    PackedCase(**AUTO, packing="wrapped", batch=2, checkpointing="full"),
    PackedCase(**{**AUTO, "sequence": 131}, batch=3, checkpointing="full", accumulation=2, card="RTX4090", tied=True),
    PackedCase(**AUTO, lora_rank=4, frozen_dtype="fp32", checkpointing="full", batch=2),
    PackedCase(**AUTO, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    PackedCase(**AUTO, ranks=3, batch=2, tied=True, accumulation=2),
    PackedCase(**AUTO, ranks=2, sharding="no-shard", batch=2, checkpointing="full"),
    PackedCase(**{**AUTO, "attention": "math", "sequence": 64}, family="qwen3", precision="bf16-pure", batch=2),
    PackedCase(**{**AUTO, "window": 64}, family="gemma3_text", tied=True, batch=2, checkpointing="full"),
]
MORE = [
    PackedCase(**{**SMALL, "sequence": 640}, **QLORA, attention="auto", checkpointing="full", batch=2),
    PackedCase(**SMALL, attention="auto", lora_rank=16, frozen_dtype="bf16", checkpointing="full", batch=2, ranks=4),
    PackedCase(**{**SMALL, "kv_heads": 16, "sequence": 1024}, attention="auto", precision="fp32", batch=2, checkpointing="full"),
    PackedCase(**{**SMALL, "sequence": 1000}, attention="auto", precision="fp16-mixed", card="T4", batch=2, checkpointing="full"),
    PackedCase(**{**SMALL, "window": 512}, family="mistral", attention="auto", card="A100-80GB", batch=3),
    PackedCase(**SMALL, family="phi3", attention="auto", checkpointing="full"),
]


def rehearsed(case, warm):
    return rehearsed_events(case, warm, "sft_train.py", 0 if case.ranks > 1 else None, ["--packing", case.packing])


PACKED = Comparison(script=FOLDER / "sft_packing_events_test.py", case_type=PackedCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                    warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(PACKED.run(*sys.argv[1:]))
