"""Rehearses programs of programs/: each ends, three repeats equal to the byte, with what a count by hand says: bytes held at the end, bounds for the peak, and the
verdict that follows from those bounds.

Usage: programs_test.py REPEATS NAME...    (names of rows; or `ci`, `torch` or `library`)
Prints a row of the table in docs/rehearsals.md for each. Libraries are those of $VRAMFIT_PROGRAMS_PYTHON, an environment with requirements-programs.txt; without
it, of the Python that runs this. Programs whose libraries don't go together with those name a variable of their own; `library` leaves them out where it is not set.
Those of `ci` are forks of one process that has imported torch, if they are for the Python that runs this; others have processes of their own.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

from library_list import ROWS as LIBRARY_ROWS
from program_list import ROWS as TORCH_ROWS
from warm_programs import WarmPrograms, started

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs")
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PYTHON = os.environ.get("VRAMFIT_PROGRAMS_PYTHON", sys.executable)
ROWS = {**TORCH_ROWS, **LIBRARY_ROWS}
GROUPS = {"ci": [name for name, program in TORCH_ROWS.items() if program.in_ci], "torch": list(TORCH_ROWS),
          "library": [name for name, program in LIBRARY_ROWS.items() if not program.own_python or program.own_python in os.environ]}
SKIPPED = 77
DIFFERS = ("seconds", "processes", "session")  # time, process numbers and folders
TIMES = ((r", [\d.]+ s(?=$|;)", ""), (r"\bprocess \d+\b", "process"))


class NoReport(Exception):
    pass


def python_of(program):
    return os.environ.get(program.own_python, PYTHON)


def is_own(python):
    """Whether it is the Python that runs this. Links are not followed: environments link to the same one."""
    return os.path.abspath(python) == os.path.abspath(sys.executable)


def rehearse(program, start):
    """The report and what was printed, both without what differs by nature, and seconds."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(program.ranks)] if program.ranks else []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "report.json")
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = start([VRAMFIT, "rehearse", "--gpus", program.cards, *program.flags, "-o", path, "--", python_of(program), *launcher, *program.call.split()],
                     cwd=FOLDER, env=environment, timeout=900)
        if not os.path.exists(path):
            raise NoReport(f"no report, exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        with open(path, encoding="utf-8") as file:
            report = json.loads(re.sub(r"\bprocess \d+\b", "process", file.read()))  # notes name processes by their numbers
    seconds = report["seconds"]
    for what, instead in TIMES:
        done.stdout = re.sub(what, instead, done.stdout, flags=re.M)
    return {name: value for name, value in report.items() if name not in DIFFERS}, done, seconds


def expected_verdict(program, report):
    """What the bounds of the count say; they must leave no doubt."""
    room = report["cluster"]["card"]["memory_bytes"] - report["cluster"]["card"]["context_bytes"]
    if program.survives:
        return "at_risk"
    if program.count.least > room:
        return "does_not_fit"
    assert program.count.most < room * 0.8, f"the count leaves it open whether {program.count.least} to {program.count.most} bytes fit into {room}"
    return "at_risk" if program.assumed else "fits"


def check(program, report, done):
    assert report["verdict"] == expected_verdict(program, report), (report["verdict"], report["why"], done.stderr[-3000:])
    printed = done.stdout.splitlines()
    for line in program.prints:
        assert line in printed, (line, done.stdout[-2000:])
    if report["verdict"] == "does_not_fit":
        assert done.returncode == 6, done.returncode
        return "-"
    assert done.returncode == 0, done.returncode
    held = next(int(line.split()[1]) for line in printed if line.startswith("held "))
    count = program.count
    assert abs(held - count.held) <= count.within * count.held, f"holds {held}, by hand {count.held}"
    peak = max(rank["peak_requested_bytes"] for rank in report["ranks"])
    assert count.least <= peak <= count.most, f"peak {peak}, by hand from {count.least} to {count.most}"
    peaks = {f"{phase['phase']} {phase['step']}": phase["peak_requested_bytes"] for phase in report["ranks"][0]["phases"]}
    for name, least, most in program.phases:
        assert least <= peaks[name] <= most, f"{name}: {peaks[name]}, by hand from {least} to {most}"
    return held


def gib(size):
    return f"{size / (1 << 30):.3f}"


def run(name, repeats, start):
    program = ROWS[name]
    first, done, seconds = rehearse(program, start)
    held = check(program, first, done)
    for _ in range(repeats - 1):
        again, printed, more = rehearse(program, start)
        assert json.dumps(again) == json.dumps(first), f"differs:\n{json.dumps(first)}\n{json.dumps(again)}"
        assert check(program, again, printed) == held
        assert name in LIBRARY_ROWS or printed.stdout == done.stdout, (printed.stdout, done.stdout)  # libraries print how long they took
        seconds = min(seconds, more)
    rank, count = first["ranks"][0], program.count
    cells = [name, program.cards, held if held == "-" else gib(held), gib(count.held), gib(rank["peak_requested_bytes"]), f"{gib(count.least)} to {gib(count.most)}",
             f"{rank['total_bytes'] / (1 << 30):.2f}", first["verdict"], str(repeats), f"{seconds:.0f}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    repeats, names = int(sys.argv[1]), sys.argv[2:]
    names = GROUPS.get(names[0], names)
    assert len(GROUPS["ci"]) == 20, GROUPS["ci"]
    if names is GROUPS["library"] and subprocess.run([PYTHON, "-c", "import trl, lightning, deepspeed, diffusers"], capture_output=True, check=False).returncode != 0:
        print("skipped: VRAMFIT_PROGRAMS_PYTHON names no Python with requirements-programs.txt")
        sys.exit(SKIPPED)
    failed = []
    with WarmPrograms() if names is GROUPS["ci"] and is_own(PYTHON) else contextlib.nullcontext() as warm:
        for name in names:
            try:
                run(name, repeats, warm.run if warm and is_own(python_of(ROWS[name])) else started)
            except (AssertionError, NoReport, subprocess.TimeoutExpired, StopIteration) as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                failed.append(name)
    if failed:
        sys.exit(f"failed: {' '.join(failed)}")


if __name__ == "__main__":
    main()
