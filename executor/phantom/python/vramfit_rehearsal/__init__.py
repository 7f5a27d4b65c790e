"""What a rehearsed program's torch is asked for: peaks by phase, and what lived when memory ran out (docs/rehearse.md)."""

import os

from vramfit_rehearsal.out_of_memory import OutOfMemory
from vramfit_rehearsal.peaks import Peaks
from vramfit_rehearsal.phases import Phases
from vramfit_rehearsal.record import Record


def install(torch):
    """Once, after torch was imported; the process may or may not come to use a GPU."""
    if torch.version.cuda is None:
        return
    peaks = Peaks(torch)
    peaks.keep_what_the_script_sees()
    phases = Phases(torch, peaks)
    phases.watch()
    failures = OutOfMemory(torch, phases)
    failures.watch()
    record = Record(torch, os.environ["VRAMFIT_PHANTOM"], peaks, phases, failures)
    record.watch()
