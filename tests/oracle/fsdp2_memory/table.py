"""Peaks of PyTorch's FSDP2 and of this project's engine for the same jobs, rehearsed on phantom GPUs: docs/fsdp2-memory.md.

    table.py write     runs every job of jobs.py under both allocators and writes the page's tables and the figures as JSON
    table.py render    writes the tables again from the stored figures
    table.py check     runs every job and fails if a figure differs from the stored one, or an estimate from its run
"""

import concurrent.futures
import dataclasses
import datetime
import json
import os
import pathlib
import subprocess
import sys

from jobs import WHOLE, Job, cover
from readings import ALLOCATORS, FIGURES, STEPS, default_loss, leanest, of_estimate, of_fsdp2, of_replay, of_vramfit

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from figures import keep, write_between  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = ROOT / "configs" / "published" / "fsdp2-memory.json"
PAGE = ROOT / "docs" / "fsdp2-memory.md"
BEGIN, END = "<!-- written by scripts/fsdp2-memory -->", "<!-- end -->"
GIB = 2**30
ABOUT = ("Peak memory of PyTorch's FSDP2 and of vramfit's engine for the same jobs: rehearsed on phantom GPUs, not measured on a card. "
         "Bytes, rank 0, the highest over the first and two steady steps. Jobs and how both sides are set: docs/fsdp2-memory.md.")


def kinds_of(job):
    """FSDP2's ways to train the job. Who asks for chunks doesn't want all logits at once."""
    return ["plain", "fused"] if job.loss != "full" else ["plain", "full", "fused"]


def read_with(job, allocator):
    """What was rehearsed and estimated under one allocator, and the versions it was rehearsed with."""
    fsdp2 = {kind: of_fsdp2(job, allocator, kind) for kind in kinds_of(job)}
    lean = leanest(job, allocator)
    ours = {option.loss: of_vramfit(option, allocator) for option in (job, lean)}
    equal = all(of_replay(dataclasses.replace(job, loss=loss), allocator) == run for loss, run in ours.items())
    reading = {"fsdp2": {kind: {figure: run[figure] for figure in FIGURES} for kind, run in fsdp2.items()},
               "vramfit": ours[job.loss], "leanest": {"loss": lean.loss, **ours[lean.loss]}, "replayed_equal": equal,
               "estimated": of_estimate(lean, allocator), "default_loss": default_loss(job, allocator)}
    return reading, fsdp2["plain"]["versions"]


def read_job(job, is_in_cover):
    """A row: the job, and its reading for each allocator."""
    row = {"job": dataclasses.asdict(job), "cover": is_in_cover}
    for allocator in ALLOCATORS:
        row[allocator], versions = read_with(job, allocator)
        row["torch"], row["card"] = versions["torch"], versions["card"]
    print(job.shown(), *(f"{allocator}: {'; '.join(cells(row, allocator))}" for allocator in ALLOCATORS), sep=" | ", flush=True)
    return row


def measure():
    tasks = [(job, True) for job in cover()] + [(job, False) for job in WHOLE]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda task: read_job(*task), tasks))


def ratio(row, allocator, figure):
    """The job as it says, on both sides."""
    return row[allocator]["vramfit"][figure] / row[allocator]["fsdp2"]["plain"][figure]


def best_of_fsdp2(row, allocator, figure):
    return min(run[figure] for run in row[allocator]["fsdp2"].values())


def best_ratio(row, allocator, figure):
    """One run of the engine against the lowest figure of any run of FSDP2's."""
    return row[allocator]["leanest"][figure] / best_of_fsdp2(row, allocator, figure)


def is_lost(row, allocator):
    return any(best_ratio(row, allocator, figure) > 1 for figure in FIGURES)


def full_loss_is_above(row, allocator):
    """Whether the engine's full loss needs more than FSDP2's best."""
    reading = row[allocator]
    return row["job"]["loss"] == "full" and any(reading["vramfit"][figure] > best_of_fsdp2(row, allocator, figure) for figure in FIGURES)


def gib(count):
    return f"{count / GIB:.3f}"


def both(figures):
    return " / ".join(gib(figures[figure]) for figure in FIGURES)


def cells(row, allocator):
    reading = row[allocator]
    ratios = " / ".join(f"{best_ratio(row, allocator, figure):.3f}" for figure in FIGURES)
    fsdp2 = [both(reading["fsdp2"][kind]) if kind in reading["fsdp2"] else "" for kind in ("plain", "full", "fused")]
    best = reading["leanest"]
    return *fsdp2, both(reading["vramfit"]), f"{both(best)}, {best['loss']}", ratios, both(reading["estimated"])


def shown(row):
    return Job(**row["job"]).shown() + ("" if row["cover"] else " (outside the cover)")


def table(rows, allocator):
    lines = ["| job | FSDP2 | Liger, full loss | Liger, fused loss | vramfit | vramfit, leanest loss | best / best | estimated |",
             "|-|-|-|-|-|-|-|-|"]
    lines += ["| " + " | ".join((shown(row), *cells(row, allocator))) + " |" for row in rows]
    return lines


def summary(rows):
    """How many rows of the cover are no higher than FSDP2's, for each allocator and figure."""
    lines = ["| compared | allocator | jobs | allocated at or below FSDP2 | reserved at or below FSDP2 | "
             "highest ratio, allocated / reserved | median | lowest |", "|-|-|-|-|-|-|-|-|"]
    for compared, ratio_of in (("best against best", best_ratio), ("the job's loss, no library", ratio)):
        for allocator in ALLOCATORS:
            ratios = {figure: sorted(ratio_of(row, allocator, figure) for row in rows) for figure in FIGURES}
            won = [str(sum(r <= 1 for r in ratios[figure])) for figure in FIGURES]
            shown = [" / ".join(f"{ratios[figure][i]:.3f}" for figure in FIGURES) for i in (-1, len(rows) // 2, 0)]
            lines.append("| " + " | ".join((compared, allocator, str(len(rows)), *won, *shown)) + " |")
    return lines


def on_defaults(rows):
    """What the engine does by default where its full loss is above FSDP2's best."""
    above = [row for row in rows if any(full_loss_is_above(row, allocator) for allocator in ALLOCATORS)]
    chunked = [row for row in above if row["expandable"]["default_loss"] != "full"]
    return (f"Of {sum(row['job']['loss'] == 'full' for row in rows)} jobs with full loss, {len(above)} need more than FSDP2's best "
            f"with it; by default, the engine chunks the loss of {len(chunked)} of these.")


def render(kept):
    rows = kept["rows"]
    covered = [row for row in rows if row["cover"]]
    text = ["", f"torch {rows[0]['torch']}, {rows[0]['card']} (phantom), {kept['date']}. GiB, allocated / reserved.", "",
            *summary(covered), "", on_defaults(rows), ""]
    equal = sum(row[allocator]["replayed_equal"] for row in rows for allocator in ALLOCATORS)
    text += [f"Predicted and rehearsed peaks (requested, allocated, reserved) are equal to the byte in {equal} of "
             f"{len(rows) * len(ALLOCATORS)} pairs of job and allocator.", ""]
    for allocator in ALLOCATORS:
        lost = [row for row in rows if is_lost(row, allocator)]
        text += [f"### {allocator}", ""]
        text += ["Higher than FSDP2's best, in either figure:", "", *table(lost, allocator), ""] if lost else ["Higher than FSDP2's best: none.", ""]
        text += ["All other rows:", "", *table([row for row in covered if row not in lost], allocator), ""]
        text += ["The whole 8B model, with its own vocabulary and with one of 1024:", "", *table([row for row in rows if not row["cover"] and row not in lost], allocator), ""]
    write_between(PAGE, BEGIN, END, text)


def commit():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def failures(rows, kept):
    for row in rows:
        name = Job(**row["job"]).shown()
        was = next((k for k in kept if k["job"] == row["job"]), None)
        for allocator in ALLOCATORS:
            if not row[allocator]["replayed_equal"]:
                yield f"{name}, {allocator}: the run differs from its prediction"
            if was is None or was[allocator] != row[allocator]:
                yield f"{name}, {allocator}: not what is kept: {row[allocator]}"


def main(mode):
    kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"rows": []}
    if mode == "write":
        rows = measure()
        kept = {"about": ABOUT, "kind": "rehearsed", "date": datetime.date.today().isoformat(), "vramfit": commit(), "steps": STEPS,
                "rows": rows}
        keep(DATA, kept)
    if mode in ("write", "render"):
        render(kept)
    wrong = list(failures(measure(), kept["rows"])) if mode == "check" else []
    print("\n".join(wrong) or "done")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
