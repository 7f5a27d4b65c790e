"""The program that does the work: where it is, and what it says when it fails."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any, Dict, NoReturn, Sequence


class VramfitError(Exception):
    """What the program could not do; `str()` is its own message."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # as in the README's list


class InputError(VramfitError):
    """An argument is wrong: unknown, missing, of a value that makes no sense, or, for a plan, in conflict with another."""


class ModelError(VramfitError):
    """The model can't be found, read or downloaded."""


USAGE, NO_PLAN, MODEL = 2, 4, 5
KINDS = {USAGE: InputError, NO_PLAN: InputError, MODEL: ModelError}  # of messages without an answer


def program_path() -> str:
    """$VRAMFIT_PROGRAM, else the program in this package, else the one on PATH."""
    named = os.environ.get("VRAMFIT_PROGRAM")
    if named:
        return named
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "vramfit")
    found = packaged if os.path.exists(packaged) else shutil.which("vramfit")
    if found is None:
        raise VramfitError("the program vramfit is neither in this package nor on PATH; VRAMFIT_PROGRAM can name it", 1)
    return found


def error_of(message: str, exit_code: int) -> VramfitError:
    lines = [line for line in message.splitlines() if line.startswith("vramfit: ")] or message.splitlines()[-1:]
    text = "\n".join(line[len("vramfit: "):] if line.startswith("vramfit: ") else line for line in lines)
    return KINDS.get(exit_code, VramfitError)(text or f"vramfit ended with exit code {exit_code}", exit_code)


def run_json(arguments: Sequence[str]) -> Dict[str, Any]:
    """The object that `vramfit ARGUMENTS --json` prints, whatever its verdict. Raises VramfitError if it prints none."""
    done = subprocess.run([program_path(), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if not done.stdout.startswith("{"):
        raise error_of(done.stderr, done.returncode)
    found: Dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> NoReturn:
    """The console script `vramfit`: becomes the program."""
    try:
        path = program_path()
        os.execv(path, ["vramfit", *sys.argv[1:]])
    except (VramfitError, OSError) as error:
        sys.exit(f"vramfit: {error}")
