"""Events of two runs of one job, rehearsed and counted, allocation by allocation."""

import collections


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
    return {step: allocations for step, allocations in steps.items() if step != "load"}


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
