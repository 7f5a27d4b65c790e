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
        if event[0] == "managed" and event[1] > 0:
            steps["managed memory"] = [(event[1], 0, collections.Counter(), "")]
        if event[0] not in "+-":
            continue
        stream = streams.setdefault(event[3], len(streams))
        if event[0] == "-":
            freed[event[1], stream] += 1
            continue
        allocations.append((event[1], stream, freed, event[4] if len(event) > 4 else ""))
        freed = collections.Counter()
    return without_compared_order({step: allocations for step, allocations in steps.items() if step not in ("load", "end")})


def without_compared_order(steps):
    """The same without the lists by which ranks of DeepSpeed's ZeRO-3 compare the order of modules, once, when the second forward begins.

    Where a step has one forward that is in the second step, and counted at the end of the first, as all later steps are to be alike.
    """
    return {step: without_lists(allocations) if step in ("step 1", "step 2") else allocations for step, allocations in steps.items()}


def without_lists(allocations):
    at = next((i for i in range(len(allocations) - LISTS) if at_order(allocations, i)), None)
    if at is None:
        return allocations
    size, stream, freed, label = allocations[at + LISTS]
    freed = freed - collections.Counter([allocations[at + LISTS - 1][:2]]) + allocations[at][2]
    return [*allocations[:at], (size, stream, freed, label), *allocations[at + LISTS + 1:]]


LISTS = 6  # of modules, of parameters and of their places, each with its length before it


def at_order(allocations, at):
    """Whether they follow each other from there, each freed before the next one is made."""
    lists = allocations[at:at + LISTS]
    if any(a[0] != 8 for a in lists[::2]) or any(a[0] <= 8 or a[0] % 8 for a in lists[1::2]) or lists[3][0] != lists[5][0]:
        return False
    return all(b[2] == collections.Counter([a[:2]]) for a, b in zip(lists, lists[1:]))


def start_of_rebuilt_buckets(first):
    """Where they begin among the counted allocations of the first step, which they end."""
    start = len(first)
    while start > 0 and first[start - 1][3].startswith("ddp: "):
        start -= 1
    return start


def without_counted_buckets(counted):
    """The counted steps without them: what is recorded of a rehearsal hasn't them either."""
    return {step: allocations[:start_of_rebuilt_buckets(allocations)] if step == "step 1" else allocations for step, allocations in counted.items()}


def without_rebuilt_buckets(rehearsed, counted):
    """Both without DDP's second set of buckets, which is made when the second step's forward begins, and counted at the end of the first step.

    What is made there, and freed between, must be equal.
    """
    first, second = counted.get("step 1", []), rehearsed.get("step 2", [])
    start = start_of_rebuilt_buckets(first)
    made = first[start:]
    at = next((i for i in range(len(second)) if [a[:2] for a in second[i:i + len(made)]] == [a[:2] for a in made]), None)
    if not made or at is None or [a[2] for a in second[at + 1:at + len(made)]] != [a[2] for a in made[1:]]:
        return rehearsed, counted
    # What was freed before them, the step's old inputs, was freed before what comes after them.
    size, stream, freed, label = second[at + len(made)]
    after = (size, stream, freed + second[at][2], label)
    return {**rehearsed, "step 2": [*second[:at], after, *second[at + len(made) + 1:]]}, {**counted, "step 1": first[:start]}


def first_difference(rehearsed, counted):
    rehearsed, counted = without_rebuilt_buckets(rehearsed, counted)
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
