"""Runs the `$ vramfit ...` lines of a page's console blocks and compares what follows with what is printed.

    console_blocks.py PAGE [--exact] [--update]

In a block, `...` alone on a line stands for lines left out, and `(exit N)` for an exit code other than 0. With --update the
output in the page is replaced by the real one; what `...` leaves out stays left out. --exact: the `console exact` blocks instead, which rehearse libraries
that $VRAMFIT_RECIPES_PYTHON has, or the Python that runs this; if that lacks them, the test is skipped (exit code 77).
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
IS_EXACT = "--exact" in sys.argv
BLOCK = re.compile(rf"(?<=^```console{' exact' if IS_EXACT else ''}\n).*?(?=^```$)", re.M | re.S)
PYTHON = os.environ.get("VRAMFIT_RECIPES_PYTHON", sys.executable) if IS_EXACT else sys.executable
SKIPPED = 77
DURATION = re.compile(r"\b\d+(\.\d+)? (s|ms)\b")  # how long a search took differs from run to run; predicted steps don't
ELISION = "..."


def run(command, folder):
    words = shlex.split(command)
    program = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", ROOT / "build" / "bin"), words[0])
    environment = {**os.environ, "PATH": f"{pathlib.Path(PYTHON).parent}:{os.environ['PATH']}", "VRAMFIT_CACHE": str(pathlib.Path(folder, "cache"))}  # of rehearsed scripts
    done = subprocess.run([str(program), *words[1:]], cwd=folder, env=environment, capture_output=True, text=True, timeout=900 if IS_EXACT else 120, check=False)
    if IS_EXACT and "install with: " in done.stderr:
        print(f"skipped: {done.stderr}")
        sys.exit(SKIPPED)
    # A verdict is on stdout, the reason of a failure on stderr; progress is not for documents.
    lines = (done.stdout if done.returncode in (0, 3) else done.stdout + done.stderr).rstrip("\n").splitlines()
    if done.returncode:
        lines.append(f"(exit {done.returncode})")
    return [line.rstrip() for line in lines]


def same(expected, real):
    if "(predicted)" in expected:
        return expected.rstrip() == real.rstrip()
    return DURATION.sub("_ s", expected.rstrip()) == DURATION.sub("_ s", real.rstrip())


def matches(expected, real):
    """Whether `real` is `expected` with any lines in the place of each elision."""
    if not expected:
        return not real
    if expected[0] == ELISION:
        return any(matches(expected[1:], real[i:]) for i in range(len(real) + 1))
    return bool(real) and same(expected[0], real[0]) and matches(expected[1:], real[1:])


def shortened(expected, real):
    """The real lines, cut where the document cuts them: of lines between cuts, those that begin like the document's up to a number."""
    if ELISION not in expected:
        return real
    kept, after = [], 0
    for line in expected:
        start = re.split(r"\d", line)[0]
        found = next((i for i in range(after, len(real)) if real[i].startswith(start)), 0 if after == 0 else None)
        if line == ELISION:
            kept.append(ELISION)
        elif found is not None:
            kept.append(real[found])
            after = found + 1
    return kept + [line for line in real[-1:] if line.startswith("(exit") and line not in kept]


def parts(block):
    """(command, expected lines) for each command of a block."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def check_block(block, folder, page, problems):
    pieces = []
    for command, expected in parts(block):
        if not command.startswith("vramfit "):
            pieces += ["$ " + command, *expected]
            continue
        real = run(command, folder)
        if not matches(expected, real):
            problems.append(f"$ {command}\n{page} says:\n" + "\n".join(expected) + "\nprinted:\n" + "\n".join(real) + "\n")
        pieces += ["$ " + command, *shortened(expected, real)]
    return "\n".join(pieces) + "\n"


def main():
    page = sys.argv[1]
    text = (ROOT / page).read_text(encoding="utf-8")
    problems, commands = [], sum(block.count("$ vramfit ") for block in BLOCK.findall(text))
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "tests").symlink_to(ROOT / "tests")
        updated = BLOCK.sub(lambda match: check_block(match.group(0), folder, page, problems), text)
    if "--update" in sys.argv:
        (ROOT / page).write_text(updated, encoding="utf-8")
        return 0
    print("\n".join(problems) + f"{page}: {commands} commands, {len(problems)} with other output than it says"
          + (f" (tests/docs/console_blocks.py {page} --update rewrites it)" if problems else ""))
    return 1 if problems or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
