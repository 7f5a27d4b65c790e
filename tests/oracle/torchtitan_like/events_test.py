"""Every allocation of the rehearsed run against the counted ledger: size, stream, and what was freed since the one before.

The order of frees between two allocations doesn't affect the allocator, so they are compared as a multiset. Load is left
out: random numbers of distributed tensors briefly allocate 16 bytes per parameter there.
Arguments: `ci`, `full`, or `planned`: jobs that `vramfit plan` chose.
"""

import pathlib
import sys
import time

from readings import Case, counted_events, planned, rehearsed_events

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from compare_events import by_step, first_difference  # noqa: E402

TINY = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn": 192, "vocabulary": 2050, "sequence": 128}
SMALL = {"hidden": 1024, "layers": 4, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 16384, "sequence": 2048}

CASES = {
    "ci": [
        Case(**TINY),
        Case(**{**TINY, "sequence": 1600, "kv_heads": 1, "ffn": 111}, batch=2, ranks=7, reshard="always", checkpointing="none"),
        Case(**{**TINY, "kv_heads": 4}, ranks=4, replicas=2, checkpointing="every:2", optimizer="fused", wrap="ends"),
        Case(**SMALL, reshard="never", checkpointing="full"),
        Case(**TINY, runtime="plain", ranks=1, accumulation=3, optimizer="fused", checkpointing="none"),
        Case(**TINY, ranks=4, optimizer="loop"),
        Case(**TINY, runtime="plain", ranks=1, optimizer="loop", checkpointing="none"),
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
        *(Case(**SMALL, runtime="plain", ranks=1, accumulation=accumulation, optimizer=optimizer, checkpointing=checkpointing)
          for accumulation in (1, 3) for optimizer in ("fused", "foreach") for checkpointing in ("none", "full", "selective")),
        Case(**{**SMALL, "sequence": 4100}, batch=2, runtime="plain", ranks=1, accumulation=2),
        *(Case(**SMALL, runtime="plain", ranks=1, dtype="float32", accumulation=accumulation, checkpointing=checkpointing)
          for accumulation in (1, 2) for checkpointing in ("none", "full", "selective")),
        Case(layers=8, runtime="plain", ranks=1, optimizer="fused", checkpointing="full"),
    ],
}


def cases_of(which):
    if which != "planned":
        return CASES[which]
    return [planned(Case(card="H100-80GB")), planned(Case(card="H100-80GB", sequence=2048), "--global-batch", 16, "--optimizer", "adamw:foreach")]


def main(which):
    failures = 0
    cases = cases_of(which)
    for case in cases:
        start = time.monotonic()
        rehearsed = by_step(rehearsed_events(case, 3))
        counted = by_step(counted_events(case, 3))
        difference = first_difference(rehearsed, counted)
        failures += difference is not None
        print(f"{case}\n  {difference or 'equal'}: {sum(map(len, counted.values()))} allocations, "
              f"{time.monotonic() - start:.1f} s", flush=True)
        if case is cases[0]:
            mode = "full" if case.checkpointing == "none" else "none"
            other = by_step(counted_events(Case(**{**vars(case), "checkpointing": mode}), 3))
            assert first_difference(rehearsed, other) is not None, "another job's events pass for these"
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
