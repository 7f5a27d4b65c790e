"""One job in three ways, in bytes: on phantom GPUs with FSDP2 (train.py) and with this project's engine, rank 0 among ghosts; and counted."""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile

from jobs import BY_DEFAULT

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from figures import last_object, run  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin"))
ALLOCATORS = {"expandable": "expandable_segments:True", "native": "expandable_segments:False"}
FIGURES = ("allocated", "reserved")
STEPS = 3  # the first, and two steady ones
LOSSES = ["full", "chunked:4", "chunked:8", "chunked:16", "chunked:32", BY_DEFAULT]  # what `vramfit plan` may choose


def written(folder, name, value):
    path = pathlib.Path(folder, name)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def of_fsdp2(job, allocator, kind):
    """{"allocated", "reserved"}: the highest over all steps, "versions", "steps". What loading took is left out."""
    with tempfile.TemporaryDirectory() as folder:
        path = written(folder, "job.json", dataclasses.asdict(job))
        out = run([PROGRAMS / "vramfit", "rehearse", "--gpus", job.cluster(), "--ranks", "0", "--", sys.executable, "-O",
                   FOLDER / "train.py", path, kind], {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]})
    report = last_object(out)
    if any(step["retries"] for step in report["steps"]):
        raise SystemExit(f"{job.shown()}: FSDP2's allocator had to give memory back: the card is too small to compare")
    return {**report, **{figure: max(step[figure] for step in report["steps"]) for figure in FIGURES}}


def of_vramfit(job, allocator):
    """{"requested", "allocated", "reserved"}: the highest over loading and all steps."""
    with tempfile.TemporaryDirectory() as folder:
        config, record = written(folder, "config.json", job.config()), pathlib.Path(folder, "run.json")
        flags = [word for name, value in job.vramfit_fields(allocator).items() for word in ("--" + name.replace("_", "-"), value)]
        run([PROGRAMS / "vramfit", "run", config, "--gpus", job.cluster(), "--device", "phantom", "--ranks", "0", "--steps", STEPS, "-o",
             record, *flags])
        rank = json.loads(record.read_text(encoding="utf-8"))["ranks"][0]
    if rank["alloc_retries"]:
        raise SystemExit(f"{job.shown()}: the engine's allocator had to give memory back")
    return {figure: rank[f"peak_{figure}_bytes"] for figure in ("requested", *FIGURES)}


def estimate(job, allocator):
    with tempfile.TemporaryDirectory() as folder:
        config = written(folder, "config.json", job.config())
        flags = [word for name, value in job.vramfit_fields(allocator).items() for word in ("--" + name.replace("_", "-"), value)]
        answer = json.loads(run([PROGRAMS / "vramfit", "estimate", config, "--gpus", job.cluster(), "--stack", "vramfit", "--json", *flags]))
    if answer["verdict"] == "not_modelled":
        raise SystemExit(f"{job.shown()}: not modelled: {answer['why']}")
    return answer


def of_estimate(job, allocator):
    """What `vramfit estimate` says: with the native allocator the upper end of a band."""
    answer = estimate(job, allocator)
    rank = answer["ranks"][answer["worst"]]
    return {figure: rank[f"peak_{figure}_bytes"] for figure in ("requested", *FIGURES)}


def of_replay(job, allocator):
    """The counted ledger on a card that hands out addresses as the phantom one does: what must equal the run to the byte."""
    with tempfile.TemporaryDirectory() as folder:
        config = written(folder, "config.json", job.config())
        fields = [f"{name}={value}" for name, value in job.vramfit_fields(allocator).items()]
        return json.loads(run([PROGRAMS / "dump_peaks", config, job.cluster(), STEPS, *fields]))


def leanest(job, allocator):
    """The job with the loss that reserves least, as counted. All losses give the same training."""
    options = [dataclasses.replace(job, loss=loss) for loss in dict.fromkeys([job.loss, *LOSSES])]
    return min(options, key=lambda option: of_replay(option, allocator)["reserved"])


def default_loss(job, allocator):
    return estimate(dataclasses.replace(job, loss=BY_DEFAULT), allocator)["job"]["loss"]
