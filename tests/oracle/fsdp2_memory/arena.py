"""What --allocator arena reserves for the jobs of docs/fsdp2-memory.md: the table of docs/arena.md. Estimates, and runs on phantom GPUs.

    arena.py write    writes the table
    arena.py check    fails if the arena takes more than it may, or if a phantom run of one job differs from its estimate
    arena.py run      runs every job on phantom GPUs; also fails if the page's table is not what is estimated
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import sys

from jobs import Job
from readings import FIGURES, estimate, of_estimate, of_vramfit
from table import DATA, GIB, shown

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "arena.md"
BEGIN, END = "<!-- written by tests/oracle/fsdp2_memory/arena.py write -->", "<!-- end -->"
CI_ROW = 19  # small: seconds
MEDIAN_PERCENT, MOST_PERCENT = 1, 5  # that may be reserved over the peak of allocated bytes


def figures(job, allocator):
    answer = estimate(job, allocator)
    rank = answer["ranks"][answer["worst"]]
    return rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]


def measure(row):
    """(row, job, allocated, reserved in expandable segments, reserved by the arena), with the loss that the page calls leanest."""
    job = dataclasses.replace(Job(**row["job"]), loss=row["expandable"]["leanest"]["loss"])
    allocated, expandable = figures(job, "expandable")
    of_arena, reserved = figures(job, "arena")
    if of_arena != allocated:
        raise SystemExit(f"{job.shown()}: {of_arena} bytes allocated with an arena, {allocated} without")
    return row, job, allocated, expandable, reserved


def over(reserved, allocated):
    return 100 * (reserved - allocated) / allocated


def lines(measured):
    yield "| job | allocated | expandable segments | arena | segments over allocated | arena over allocated |"
    yield "|-|-|-|-|-|-|"
    for row, job, allocated, expandable, reserved in measured:
        name = shown({**row, "job": dataclasses.asdict(job)})
        gib = " | ".join(f"{count / GIB:.3f}" for count in (allocated, expandable, reserved))
        yield f"| {name} | {gib} | {over(expandable, allocated):.2f} % | {over(reserved, allocated):.2f} % |"


def summary(measured):
    arena = sorted(over(reserved, allocated) for *_, allocated, _, reserved in measured)
    segments = sorted(over(expandable, allocated) for *_, allocated, expandable, _ in measured)
    middle = len(measured) // 2
    return (f"Over {len(measured)} jobs the arena reserves {arena[middle]:.2f} % more than is allocated at the peak in the median and {arena[-1]:.2f} % at "
            f"most; expandable segments {segments[middle]:.2f} % and {segments[-1]:.2f} %.")


def faults(measured):
    arena = sorted(over(reserved, allocated) for *_, allocated, _, reserved in measured)
    if arena[len(arena) // 2] > MEDIAN_PERCENT or arena[-1] > MOST_PERCENT:
        yield f"{arena[len(arena) // 2]:.2f} % over what is allocated in the median, {arena[-1]:.2f} % at most"
    for _, job, allocated, expandable, reserved in measured:
        if not allocated <= reserved <= expandable:
            yield f"{job.shown()}: the arena reserves {reserved}, {allocated} are allocated, expandable segments reserve {expandable}"


def faults_in_run(job):
    """Of a run in the arena: all but what was asked for off the script is in its block, so reserved memory is as estimated."""
    ran, estimated = of_vramfit(job, "arena"), of_estimate(job, "arena")
    return [f"{job.shown()}: {figure} {ran[figure]} in the run, {estimated[figure]} estimated" for figure in ("requested", *FIGURES)
            if ran[figure] != estimated[figure]]


def main(mode):
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        measured = list(pool.map(measure, rows))
    wrong = list(faults(measured))
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN), text.index(END)
    table = "\n".join([BEGIN, "", summary(measured), "", *lines(measured), ""])
    if mode == "write":
        PAGE.write_text(text[:start] + table + text[end:], encoding="utf-8")
    elif mode == "run" and text[start:end] != table:
        wrong.append("the table of docs/arena.md is not what is estimated: run arena.py write")
    to_run = {"check": [measured[CI_ROW]], "run": measured}.get(mode, [])
    for _, job, *_ in to_run:
        wrong += faults_in_run(job)
    print("\n".join([summary(measured), *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
