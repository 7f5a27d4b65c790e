"""Every allocation of the rehearsed run against the counted ledger: size, stream, and what was freed since the one before.

Load is left out: random numbers of distributed tensors briefly allocate 16 bytes per parameter there.
Arguments: a part (recorded.py), or `planned`: jobs that `vramfit plan` chose.
"""

import contextlib
import dataclasses
import sys

from readings import FOLDER, Case, counted_events, planned, rehearsed_events  # which puts the folder above on the path
from compare_events import failures_of
from recorded import Comparison

TINY = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn": 192, "vocabulary": 2050, "sequence": 128}
SMALL = {"hidden": 1024, "layers": 4, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 16384, "sequence": 2048}

# Rehearsed in CI: FSDP2 with checkpointing and a loss in parts, and one GPU.
SAMPLE = [
    Case(**TINY, ranks=4, loss="chunked:4"),
    Case(**TINY, runtime="plain", ranks=1, accumulation=3, optimizer="fused", checkpointing="none"),
]
CASES = {
    "ci": [  # recorded
        *SAMPLE,
        Case(**TINY),
        Case(**{**TINY, "sequence": 1600, "kv_heads": 1, "ffn": 111}, batch=2, ranks=7, reshard="always", checkpointing="none"),
        Case(**{**TINY, "kv_heads": 4}, ranks=4, replicas=2, checkpointing="every:2", optimizer="fused", wrap="ends"),
        Case(**SMALL, reshard="never", checkpointing="full"),
        Case(**TINY, ranks=4, optimizer="loop"),
        Case(**{**TINY, "layers": 5}, ranks=4, layers_of_unit=2, checkpointing="every:2"),
        Case(**TINY, runtime="plain", ranks=1, optimizer="loop", checkpointing="none"),
        Case(**TINY, batch=3, ranks=4, loss="chunked:8", optimizer="fused", wrap="ends", checkpointing="none"),
        Case(**TINY, runtime="plain", ranks=1, loss="chunked:1", accumulation=2, checkpointing="full"),
    ],
    "full": [
        *(Case(**SMALL, reshard=reshard, checkpointing=checkpointing)
          for reshard in ("default", "last-kept", "always", "never") for checkpointing in ("none", "selective", "full", "every:2")),
        Case(**{**SMALL, "sequence": 1000}, batch=3),
        Case(**SMALL, ranks=32),
        Case(**SMALL, optimizer="fused"),
        Case(**SMALL, optimizer="loop"),
        Case(**{**SMALL, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 4100}),
        Case(**SMALL, card="A100-80GB"),
        Case(layers=2, sequence=32768, checkpointing="full"),
        Case(),
        Case(reshard="default"),
        Case(reshard="never"),
        Case(batch=2),
        Case(batch=2, ranks=128),
        *(Case(**SMALL, wrap="ends", reshard=reshard, checkpointing="full") for reshard in ("default", "last-kept", "always", "never")),
        Case(**{**TINY, "sequence": 1600}, wrap="ends", ranks=4, replicas=2, checkpointing="none", optimizer="fused"),
        Case(wrap="ends", reshard="default"),
        *(Case(**{**SMALL, "layers": 7}, layers_of_unit=layers, reshard=reshard, checkpointing=checkpointing, wrap=wrap)
          for layers, wrap in ((2, "root"), (3, "ends")) for reshard in ("default", "last-kept", "always", "never")
          for checkpointing in ("none", "selective", "full")),
        Case(layers_of_unit=4),
        *(Case(**SMALL, runtime="plain", ranks=1, accumulation=accumulation, optimizer=optimizer, checkpointing=checkpointing)
          for accumulation in (1, 3) for optimizer in ("fused", "foreach") for checkpointing in ("none", "full", "selective")),
        Case(**{**SMALL, "sequence": 4100}, batch=2, runtime="plain", ranks=1, accumulation=2),
        *(Case(**SMALL, runtime="plain", ranks=1, dtype="float32", accumulation=accumulation, checkpointing=checkpointing)
          for accumulation in (1, 2) for checkpointing in ("none", "full", "selective")),
        Case(layers=8, runtime="plain", ranks=1, optimizer="fused", checkpointing="full"),
        *(Case(**SMALL, loss="chunked:8", optimizer="fused", batch=batch, reshard=reshard, checkpointing=checkpointing)
          for batch in (1, 2) for reshard in ("default", "never") for checkpointing in ("none", "selective", "full")),
        Case(**SMALL, runtime="plain", ranks=1, dtype="float32", loss="chunked:4", checkpointing="none"),
        Case(loss="chunked:8", optimizer="fused"),
    ],
}


def planned_cases():
    return [planned(Case(card="H100-80GB")), planned(Case(card="H100-80GB", sequence=2048), "--global-batch", 16, "--optimizer", "adamw:foreach")]


def other_checkpointing(case):
    return dataclasses.replace(case, checkpointing="full" if case.checkpointing == "none" else "none")


TORCHTITAN = Comparison(
    script=FOLDER / "events_test.py", case_type=Case, libraries=["torch"], sample=SAMPLE, few=CASES["ci"], more=CASES["full"], warm=contextlib.nullcontext,
    rehearsed=lambda case, _: rehearsed_events(case), counted=counted_events, changed=other_checkpointing)


def main(part, *numbers):
    if part == "planned":
        return 1 if failures_of(planned_cases(), rehearsed_events, counted_events, other_checkpointing) else 0
    return TORCHTITAN.run(part, *numbers)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
