"""python.PID.json in the session folder: written while the program runs, when memory runs out, and at its end."""

import atexit
import functools
import json
import os
import sys

from vramfit_rehearsal.peaks import NAMES
from vramfit_rehearsal.phases import Throttle

MOST_ENTRIES = 1 << 21  # of the allocator's history, for a snapshot


class Record:
    def __init__(self, torch, folder, peaks, phases, failures):
        self.torch = torch
        self.folder = folder
        self.peaks = peaks
        self.phases = phases
        self.failures = failures
        self.pid = os.getpid()
        self.snapshot = os.environ.get("VRAMFIT_REHEARSAL_SNAPSHOT") == "1"
        self.throttle = Throttle(1.0)
        self.notes = []

    def watch(self):
        atexit.register(self.end, "exit")
        leave = os._exit

        @functools.wraps(leave)
        def _exit(status):
            self.end("os._exit")
            leave(status)

        os._exit = _exit
        os.register_at_fork(after_in_child=self._begin_anew)
        self.phases.on_mark = self._while_running
        self.failures.on_event = lambda: self.write("running", dump=self.failures.count == 1)
        if self.snapshot:
            self._record_history()

    def _record_history(self):
        """_record_memory_history, _dump_snapshot and _lazy_call are not public."""
        memory = self.torch.cuda.memory
        start = functools.partial(memory._record_memory_history, max_entries=MOST_ENTRIES)
        self.torch.cuda._lazy_call(start)

    def _begin_anew(self):
        """A forked child starts anew: it has used no GPU, and what the parent saw belongs to the parent."""
        self.pid = os.getpid()
        self.peaks.devices.clear()
        self.failures.events.clear()
        self.failures.count = 0
        self.phases.phase, self.phases.step = "load", 1
        self.peaks.current = self.phases.now()

    def _while_running(self):
        if self.throttle.passes():
            self.write("running")

    def end(self, how):
        if self.pid == os.getpid():
            self.write(how, dump=True)

    def write(self, ended, dump=False):
        try:
            if not self.torch.cuda.is_initialized():
                return
            self.peaks.look()
            self._write_json(f"python.{self.pid}.json", self._document(ended))
            if dump and self.snapshot:
                self._dump()
        except Exception as error:
            print(f"vramfit rehearse: statistics can't be written: {type(error).__name__}: {error}", file=sys.stderr)

    def _dump(self):
        path = os.path.join(self.folder, f"snapshot.{self.pid}.pickle")
        if not os.path.exists(path):  # the one of the first out-of-memory stays
            self.torch.cuda.memory._dump_snapshot(path)

    def _document(self, ended):
        error = getattr(sys, "last_value", None)
        return {"schema": "vramfit/phantom-python@1", "pid": self.pid, "ended": ended, "torch": str(self.torch.__version__),
                "steps": self._steps(), "exception": "" if error is None else f"{type(error).__name__}: {error}"[:2000],
                "pinned_peak_bytes": self._pinned(), "devices": [self._device(i) for i in sorted(self.peaks.devices)],
                "out_of_memory": self.failures.events,
                "notes": self.notes + self.peaks.notes + self.phases.notes}

    def _steps(self):
        return self.phases.step if self.phases._stepped else self.phases.step - 1

    def _pinned(self):
        read = getattr(self.torch.cuda.memory, "host_memory_stats", None)
        return int(read().get("allocated_bytes.peak", 0)) if read is not None else 0

    def _device(self, index):
        device = self.peaks.devices[index]
        phases = [{"phase": phase, "step": step, **{f"peak_{name}": peaks[name] for name in NAMES}}
                  for (phase, step), peaks in device.phases.items()]
        return {"device": index, **{f"peak_{name}": device.peak(name) for name in NAMES},
                "alloc_retries": device.retries + device.last.get("num_alloc_retries", 0),
                "out_of_memory_count": device.out_of_memory + device.last.get("num_ooms", 0), "phases": phases}

    def _write_json(self, name, document):
        path = os.path.join(self.folder, name)
        with open(path + ".partial", "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(path + ".partial", path)
