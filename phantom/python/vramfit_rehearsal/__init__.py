"""Statistics of a rehearsed program's torch: peaks by phase, and what was live when memory ran out (docs/rehearse.md)."""

import importlib
import json
import os

from vramfit_rehearsal import checkpoints, gloo_groups, object_collectives, splits, values
from vramfit_rehearsal.out_of_memory import OutOfMemory
from vramfit_rehearsal.peaks import Peaks
from vramfit_rehearsal.phases import Phases
from vramfit_rehearsal.record import Record
from vramfit_rehearsal.watchdog import Watchdog


def install(torch):
    """Called once, after torch was imported; the process may or may not use a GPU later."""
    if torch.version.cuda is None:
        return
    peaks = Peaks(torch)
    peaks.keep_what_the_script_sees()
    phases = Phases(torch, peaks)
    phases.watch()
    importlib.import_module("torch.distributed")
    phases.on_step = Watchdog(torch).settle
    failures = OutOfMemory(torch, phases)
    failures.watch()
    record = Record(torch, os.environ["VRAMFIT_PHANTOM"], peaks, phases, failures)
    record.watch()
    values.install(torch, phases.note)
    install_groups(torch, has_ghosts(os.environ["VRAMFIT_PHANTOM"]), phases.note)


def has_ghosts(folder):
    with open(os.path.join(folder, "session.json"), encoding="utf-8") as file:
        return json.load(file).get("played_rank") is not None


def install_groups(torch, ghosts, note):
    """Installs what process groups need on phantom GPUs."""
    importlib.import_module("torch.distributed")
    if not torch.distributed.is_available():
        return
    if ghosts:
        gloo_groups.install(torch, note)
        splits.install(torch)
        checkpoints.install(torch.distributed)
    object_collectives.install(torch, ghosts)
