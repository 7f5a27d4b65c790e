"""For the same job, this project's engine needs no more memory than PyTorch's FSDP2, exactly as much as estimated, and always the same.

    memory_test.py ci         four jobs of the cover with the leanest losses of both sides, each under one allocator, three times
    memory_test.py repeats    every job under both allocators, twenty times (the whole table: table.py check)
"""

import concurrent.futures
import dataclasses
import os
import sys

from jobs import WHOLE, cover
from readings import ALLOCATORS, FIGURES, leanest, of_fsdp2, of_replay, of_vramfit

# By their places in the cover: the three models, 2 to 512 ranks, both ways to wrap, checkpointed or not, both losses.
CI = [(4, "expandable"), (5, "native"), (15, "native"), (24, "expandable")]


def against_fsdp2(as_drawn, allocator):
    """Lines that say what is wrong."""
    job = leanest(as_drawn, allocator)
    ours, theirs, counted = of_vramfit(job, allocator), of_fsdp2(job, allocator, "fused"), of_replay(job, allocator)
    for figure in FIGURES:
        if ours[figure] > theirs[figure]:
            yield f"{figure} {ours[figure]} is above FSDP2's {theirs[figure]}"
    if ours != counted:
        yield f"rehearsed {ours}, counted {counted}"
    if of_replay(dataclasses.replace(job, accumulation=3 - job.accumulation), allocator) == ours:
        yield "the count of another job passes for this one's"
    yield from against_itself(job, allocator, ours, 2)


def against_itself(job, allocator, first, times):
    for _ in range(times):
        again = of_vramfit(job, allocator)
        if again != first:
            yield f"{first} the first time, {again} another"


def twenty_times(job, allocator):
    yield from against_itself(job, allocator, of_vramfit(job, allocator), 19)


def run(task):
    """Whether nothing is wrong."""
    test, job, allocator = task
    lines = list(test(job, allocator))
    print(f"{job.shown()}, {allocator}: {'; '.join(lines) or 'as it should be'}", flush=True)
    return not lines


def main(which):
    jobs = cover()
    if which == "ci":
        tasks = [(against_fsdp2, jobs[place], allocator) for place, allocator in CI]
    else:
        tasks = [(twenty_times, job, allocator) for job in jobs + WHOLE for allocator in ALLOCATORS]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return 0 if all(list(pool.map(run, tasks))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
