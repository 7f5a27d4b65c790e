"""Events of two runs of one job, rehearsed and counted, allocation by allocation.

Load is left out: its allocations are the library's that made the model. So is what comes after the last step. The order of frees between two allocations
doesn't affect the allocator, so they are compared as a multiset.
"""

import collections
import time


def by_step(events):
    """Step -> list of (bytes, stream, multiset of frees before it, label). Streams are numbered as they are met."""
    steps, streams = {}, {}
    for event in events:
        if event[0] == "mark":
            allocations, freed = steps.setdefault(event[1], []), collections.Counter()
            continue
        if event[0] not in "+-":
            continue
        stream = streams.setdefault(event[3], len(streams))
        if event[0] == "-":
            freed[event[1], stream] += 1
            continue
        allocations.append((event[1], stream, freed, event[4] if len(event) > 4 else ""))
        freed = collections.Counter()
    return {step: allocations for step, allocations in steps.items() if step not in ("load", "end")}


def first_difference(rehearsed, counted):
    if rehearsed.keys() != counted.keys():
        return f"steps {sorted(rehearsed)} and {sorted(counted)}"
    for step, allocations in counted.items():
        for number, (there, here) in enumerate(zip(rehearsed[step], allocations)):
            if there[:3] != here[:3]:
                return f"{step}, allocation {number} ({here[3]}):\n  rehearsed {there[:3]}\n  counted   {here[:3]}"
        if len(rehearsed[step]) != len(allocations):
            return f"{step}: {len(rehearsed[step])} allocations rehearsed, {len(allocations)} counted"
    return None


def failures_of(cases, rehearsed_events, counted_events, changed):
    """How many of the cases differ, each printed. The events of `changed(cases[0])`, another job, must differ from the first one's."""
    failures = 0
    for case in cases:
        start = time.monotonic()
        rehearsed, counted = by_step(rehearsed_events(case)), by_step(counted_events(case))
        difference = first_difference(rehearsed, counted)
        failures += difference is not None
        print(f"{case}\n  {difference or 'equal'}: {sum(map(len, counted.values()))} allocations, {time.monotonic() - start:.1f} s", flush=True)
        if case is cases[0]:
            other = by_step(counted_events(changed(case)))
            assert first_difference(rehearsed, other) is not None, "another job's events pass for these"
    return failures
