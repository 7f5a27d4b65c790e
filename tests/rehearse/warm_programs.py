"""`vramfit rehearse` of Python scripts as forks of one process that has imported torch, which takes longer than most of them. What they print is kept."""
import contextlib
import os
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "python"))
os.environ["VRAMFIT_PROGRAM"] = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
import vramfit  # noqa: E402

MODULES = ("torch", "torch._dynamo")  # which optimizers import when they first step


def started(words, **settings):
    """As WarmPrograms.run, in a process of its own."""
    return subprocess.run(words, text=True, capture_output=True, check=False, **settings)


class WarmPrograms(vramfit.Warm):
    def __init__(self, *modules):
        super().__init__(*(modules or MODULES))
        self._out = -1

    def _send(self, request, descriptors):
        super()._send(request, [self._out, *descriptors[1:]])

    def run(self, words, *, timeout, cwd=None, env=None):
        """As subprocess.run, one at a time, of the Python that runs this."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
            self._out = out.fileno()
            fork = self._start(words, cwd, env or os.environ)
            is_late = threading.Event()

            def end():
                is_late.set()
                with contextlib.suppress(ProcessLookupError):
                    fork.terminate()

            late = threading.Timer(timeout, end)
            late.daemon = True
            late.start()
            try:
                with fork.stderr:
                    errors = fork.stderr.read()
                code = fork.wait()
            finally:
                late.cancel()
            out.seek(0)
            if is_late.is_set():
                raise subprocess.TimeoutExpired(words, timeout, out.read(), errors)
            return subprocess.CompletedProcess(words, code, out.read(), errors)
