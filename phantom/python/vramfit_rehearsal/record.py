"""python.PID.record in the session folder: current at each phase boundary, when memory runs out, and at the end.

The file holds two documents, each one line of JSON at a fixed place, and its first byte says which one is complete. The other is
written before that byte changes, so a program that is killed at any moment leaves a complete one (cli/rehearse/report/records.cpp).
"""

import atexit
import functools
import json
import os
import sys

from vramfit_rehearsal import mpi
from vramfit_rehearsal.peaks import NAMES

BEGIN, DOCUMENT_BYTES = 64, 256 << 10
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
        self.notes = []
        self.is_begun = False
        self.place = 0  # of the complete document

    def watch(self):
        atexit.register(self.end, "exit")
        leave = os._exit

        @functools.wraps(leave)
        def _exit(status):
            self.end("os._exit")
            leave(status)

        os._exit = _exit
        os.register_at_fork(after_in_child=self._begin_anew)
        self.phases.on_mark = self._at_mark
        self.failures.on_event = lambda: self.write("running", dump=self.failures.count == 1)
        later = getattr(self.torch.cuda, "_lazy_call", None)
        if later is not None:
            later(self._at_first_use)
        if self.snapshot:
            self._record_history()

    def _at_first_use(self):
        """So that a program that ends before its first phase does is known to use torch."""
        try:
            self._put(self._document("running"))
        except Exception as error:
            self._complain(error)

    def _record_history(self):
        """_record_memory_history, _dump_snapshot and _lazy_call are not public."""
        memory = self.torch.cuda.memory
        start = functools.partial(memory._record_memory_history, max_entries=MOST_ENTRIES)
        self.torch.cuda._lazy_call(start)

    def _begin_anew(self):
        """A forked child starts anew: it has used no GPU, and what the parent saw belongs to the parent."""
        self.pid = os.getpid()
        self.is_begun = False
        self.peaks.devices.clear()
        self.failures.events.clear()
        self.failures.count = self.failures.steps_since = 0
        self.failures.worked = []
        self.phases.phase, self.phases.step = "load", 1
        self.peaks.current = self.phases.now()

    def _at_mark(self):
        self.write("running", look=False)  # the peaks were read a moment ago

    def end(self, how):
        if self.pid == os.getpid():
            self.write(how, dump=True)

    def write(self, ended, dump=False, look=True):
        try:
            if not self.torch.cuda.is_initialized():
                return
            if look:
                self.peaks.look()
            self._put(self._document(ended))
            if dump and self.snapshot:
                self._dump()
        except Exception as error:
            self._complain(error)

    @staticmethod
    def _complain(error):
        print(f"vramfit rehearse: statistics can't be written: {type(error).__name__}: {error}", file=sys.stderr)

    def _dump(self):
        path = os.path.join(self.folder, f"snapshot.{self.pid}.pickle")
        if not os.path.exists(path):  # the one of the first out-of-memory stays
            self.torch.cuda.memory._dump_snapshot(path)

    def _document(self, ended):
        error = getattr(sys, "last_value", None)
        return {"schema": "vramfit/phantom-python@1", "pid": self.pid, "ended": ended, "torch": str(self.torch.__version__),
                "steps": self._steps(), "steps_since_out_of_memory": self.failures.steps_since, "inputs": self.failures.worked,
                "exception": "" if error is None else f"{type(error).__name__}: {error}"[:2000],
                "pinned_peak_bytes": self._pinned(), "devices": [self._device(i) for i in sorted(self.peaks.devices)],
                "out_of_memory": self.failures.events,
                "notes": self.notes + mpi.notes + self.peaks.notes + self.phases.notes}

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

    def _put(self, document):
        line = json.dumps(document).encode() + b"\n"
        if len(line) > DOCUMENT_BYTES:
            raise ValueError(f"the document has {len(line)} bytes, more than {DOCUMENT_BYTES}")
        path = os.path.join(self.folder, f"python.{self.pid}.record")
        # Opened each time: a program may close descriptors that it doesn't know.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if self.is_begun else os.O_TRUNC), 0o600)
        try:
            place = 1 - self.place
            os.pwrite(file, line, BEGIN + place * DOCUMENT_BYTES)
            os.pwrite(file, b"01"[place:place + 1], 0)
            self.place, self.is_begun = place, True
        finally:
            os.close(file)
