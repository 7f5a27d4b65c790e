"""Rehearsals that start where imports end: forks of a process that has done them."""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any, Callable, List, Mapping, Optional, Sequence, Union

from vramfit._commands import Option
from vramfit._program import VramfitError, error_of, program_path
from vramfit._results import Rehearsal


def library_folder() -> str:
    """As the program finds it."""
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(program_path()))), "lib", "phantom")
    folder = os.path.abspath(os.environ.get("VRAMFIT_PHANTOM_LIB") or beside)
    if not os.path.exists(os.path.join(folder, "libvramfit-phantom-audit.so")):
        raise VramfitError(f"{folder}: holds no libvramfit-phantom-audit.so; VRAMFIT_PHANTOM_LIB can name the folder", 1)
    return folder


def in_front(path: str, variable: str) -> str:
    return ":".join(filter(None, [path, os.environ.get(variable)]))


def copy_session(gpus: str, folder: str) -> None:
    """What describes the GPUs to a program that is rehearsed on them."""
    words = [program_path(), "rehearse", "--gpus", gpus, "--", "sh", "-c", 'cp "$VRAMFIT_PHANTOM/session.json" "$1"', "sh", folder]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if not os.path.exists(os.path.join(folder, "session.json")):
        raise error_of(done.stderr, done.returncode)


class Warm:
    """A process that has imported modules, and of which each rehearsal is a fork, so that it begins where imports end.

        with vramfit.Warm("torch", "transformers") as warm:
            for size in (1, 2, 4, 8):
                warm.rehearse(train, gpus="8xH100-80GB", kwargs={"micro_batch": size})

    While they are imported, `modules` see the GPUs of `gpus` and must not use them. What they read from the environment then is that of this process,
    when `Warm` was called. Several threads may rehearse at once. Raises VramfitError if a module can't be imported.
    """

    def __init__(self, *modules: str, gpus: str = "1xH100-80GB") -> None:
        folder = library_folder()
        self._session = tempfile.TemporaryDirectory(prefix="vramfit-")
        copy_session(gpus, self._session.name)
        environment = {**os.environ, "LD_AUDIT": in_front(os.path.join(folder, "libvramfit-phantom-audit.so"), "LD_AUDIT"),
                       "VRAMFIT_PHANTOM": self._session.name, "VRAMFIT_PHANTOM_LIB": folder, "VRAMFIT_WARM_SERVER": "1",
                       "PYTHONPATH": in_front(os.path.join(folder, "python"), "PYTHONPATH")}
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server = os.path.join(folder, "python", "vramfit_warm", "server.py")
            self._process = subprocess.Popen([sys.executable, server, str(theirs.fileno()), json.dumps({"modules": modules})], env=environment,
                                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[theirs.fileno()])
        assert self._process.stderr is not None
        if not self._requests.recv(1 << 16):
            said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            self.close()
            raise VramfitError(f"importing {', '.join(modules)}: {said[-1] if said else 'the process ended'}", 1)

    def rehearse(self, what: Union[Sequence[Union[str, "os.PathLike[str]"]], Callable[..., Any]], *, gpus: str, ranks: Union[None, int, str] = None,
                 args: Sequence[Any] = (), kwargs: Optional[Mapping[str, Any]] = None, cwd: Optional[str] = None,
                 env: Optional[Mapping[str, str]] = None, **options: Option) -> Rehearsal:
        """As vramfit.rehearse, of a function, or of a Python script with its arguments: ["train.py", "--steps", "2"]."""
        from vramfit import _rehearse
        if isinstance(what, str):
            what = [what]
        command = what if callable(what) else [sys.executable, *what]
        return _rehearse.rehearse_with(self._start, command, gpus=gpus, ranks=ranks, args=args, kwargs=kwargs, cwd=cwd, env=env, **options)

    def _start(self, words: List[str], cwd: Optional[str], environment: Mapping[str, str]) -> "Fork":
        words = [os.path.abspath(words[0]), *words[1:]]
        nobody = "0"  # is the rehearsal's parent: the process with the imports waits for it
        fields = [str(len(words)), *words, os.path.abspath(cwd or os.getcwd()), nobody, *(f"{name}={value}" for name, value in environment.items())]
        return Fork(self._send, b"".join(os.fsencode(field) + b"\0" for field in fields))

    def _send(self, request: bytes, descriptors: Sequence[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._requests, [request], descriptors)
            except OSError as error:
                raise VramfitError(f"the process with the imports doesn't answer: {error}", 1) from None

    def close(self) -> None:
        """Ends the process. Rehearsals that run go on."""
        self._requests.close()
        self._process.wait()
        self._session.cleanup()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def __enter__(self) -> "Warm":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Fork:
    """A rehearsal that runs, with what subprocess.Popen has of one."""

    def __init__(self, send: Callable[[bytes, Sequence[int]], None], request: bytes) -> None:
        said, error_end = os.pipe()
        reports, report_end = os.pipe()
        quiet = os.open(os.devnull, os.O_WRONLY)
        self.stderr: Optional[IO[str]] = os.fdopen(said, encoding="utf-8", errors="replace")
        self._reports = os.fdopen(reports, encoding="ascii")
        try:
            send(request, [quiet, error_end, report_end])
        except BaseException:
            self.stderr.close()
            self._reports.close()
            raise
        finally:
            for descriptor in (quiet, error_end, report_end):
                os.close(descriptor)
        self._pid = int(self._reports.readline() or 0)

    def terminate(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)

    def wait(self) -> int:
        with self._reports:
            return int(self._reports.readline() or -1)
