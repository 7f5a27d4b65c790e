"""`vramfit rehearse`, of commands and of Python functions."""
from __future__ import annotations

import functools
import inspect
import json
import os
import pickle
import subprocess
import sys
import tempfile
from typing import Any, Callable, List, Mapping, Optional, Sequence, TypeVar, Union

from vramfit._commands import Option, flags
from vramfit._program import error_of, program_path
from vramfit._results import Rehearsal
from vramfit._warm import Fork, Warm

INSIDE = "VRAMFIT_REHEARSED_FUNCTION"  # set in the process that plays a function
Command = Union[str, Sequence[Union[str, "os.PathLike[str]"]]]
Function = TypeVar("Function", bound=Callable[..., Any])
Running = Union["subprocess.Popen[str]", Fork]
Start = Callable[[List[str], Optional[str], Mapping[str, str]], Running]


class RehearsalFailed(AssertionError):
    """A rehearsed test does not fit, or failed; `result` is the rehearsal."""

    def __init__(self, message: str, result: Rehearsal) -> None:
        super().__init__(message)
        self.result = result


def rehearse(what: Union[Command, Callable[..., Any]], *, gpus: str, ranks: Union[None, int, str] = None, args: Sequence[Any] = (),
             kwargs: Optional[Mapping[str, Any]] = None, cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
             **options: Option) -> Rehearsal:
    """Memory of a program on simulated GPUs; no GPU is needed and none is used.

    `what` is a command, as a list of words, or a function, which is called with `args` and `kwargs` in a process of its own (it is found
    there by its module and name, so it can't be a lambda or be defined inside another function). `ranks` is "all", where the program
    starts its own ranks, or the one rank that is played while the others are simulated; by default "all" for a command, 0 for a function.
    `options` are the flags of `vramfit rehearse`: timeout=60, set_="routing=worst", strict_oom=True.

    What the program prints goes to stderr. That it fails or does not fit is an answer: see `verdict`. Raises InputError or VramfitError
    if it can't be started.
    """
    return rehearse_with(start_program, what, gpus=gpus, ranks=ranks, args=args, kwargs=kwargs, cwd=cwd, env=env, **options)


def rehearse_with(start: Start, what: Union[Command, Callable[..., Any]], *, gpus: str, ranks: Union[None, int, str], args: Sequence[Any],
                  kwargs: Optional[Mapping[str, Any]], cwd: Optional[str], env: Optional[Mapping[str, str]], **options: Option) -> Rehearsal:
    with tempfile.TemporaryDirectory(prefix="vramfit-") as folder:
        environment = {**os.environ, **(env or {})}
        if callable(what):
            command = function_command(what, args, kwargs or {}, folder)
            environment[INSIDE] = "1"
        else:
            if args or kwargs:
                raise TypeError("args and kwargs are a function's; a command has its words")
            command = [what] if isinstance(what, str) else [os.fspath(word) for word in what]
        played = ranks if ranks is not None else (0 if callable(what) else "all")
        report = os.path.join(folder, "rehearsal.json")
        words = ["rehearse", "--gpus", gpus, "--ranks", str(played), *flags(options), "--output", report, "--json", "--", *command]
        return run(start([program_path(), *words], cwd, environment), report)


def start_program(words: List[str], cwd: Optional[str], environment: Mapping[str, str]) -> Running:
    return subprocess.Popen(words, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, errors="replace")


def run(process: Running, report: str) -> Rehearsal:
    """The report is a file, so that what the program says can go to our stderr as it comes."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        assert process.stderr is not None
        with process.stderr:
            try:
                for line in process.stderr:
                    sys.stderr.write(line)
                    said.write(line)
                code = process.wait()
            except BaseException:
                process.terminate()  # ends all that the program started
                process.wait()
                raise
        if not os.path.exists(report) or os.path.getsize(report) == 0:
            said.seek(0)
            raise error_of(said.read(), code)
    with open(report, encoding="utf-8") as file:
        return Rehearsal(json.load(file))


def function_command(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], folder: str) -> List[str]:
    """Calls it from a process of its own, as _call.py does."""
    name = getattr(function, "__qualname__", None)
    if name is None or "<" in name:
        raise TypeError(f"{function!r} can't be rehearsed: it must be a function that its module has by its name")
    module = function.__module__
    try:
        file = os.path.abspath(inspect.getfile(inspect.unwrap(function)))
    except TypeError:
        file = ""
    call = {"module": module, "name": name, "file": file, "path": list(sys.path), "arguments": pickle.dumps((tuple(args), dict(kwargs)))}
    path = os.path.join(folder, "call.pickle")
    with open(path, "wb") as out:
        pickle.dump(call, out)
    return [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "_call.py"), path]


def rehearsal(gpus: str, *, ranks: Union[int, str] = 0, most_bytes: Optional[int] = None, warm: Optional[Warm] = None,
              **options: Option) -> Callable[[Function], Function]:
    """Makes a test run on simulated GPUs, and fail with RehearsalFailed if it does not fit them or fails itself.

        @vramfit.rehearsal("8xH100-80GB")
        def test_training_step_fits():
            train(steps=2)

    The test runs in a process of its own, as rank `ranks` of `gpus`. `most_bytes`: what it may take of a GPU; by default all of it.
    `warm`: of which that process is a fork.
    """
    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def test(*args: Any, **kwargs: Any) -> Any:
            if os.environ.get(INSIDE):
                return function(*args, **kwargs)
            result = (warm.rehearse if warm else rehearse)(test, gpus=gpus, ranks=ranks, args=args, kwargs=kwargs, **options)
            if not result.fits:
                raise RehearsalFailed(f"{result.verdict}: {result.why}", result)
            if most_bytes is not None and result.total_bytes > most_bytes:
                raise RehearsalFailed(f"takes {result.total_bytes} bytes of a GPU, {most_bytes} are allowed", result)
            return None

        return test  # type: ignore[return-value]

    return decorate
