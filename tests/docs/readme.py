"""Runs the `$ vramfit ...` lines of README.md's console blocks and compares what follows with what is printed.

In a block, `...` alone on a line stands for lines left out, and `(exit N)` for an exit code other than 0. With --update the
output in README.md is replaced by the real one; the part before a `...` keeps its length.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.M | re.S)
DURATION = re.compile(r"\b\d+(\.\d+)? (s|ms)\b")  # how long a search took differs from run to run
ELISION = "..."


def run(command, folder):
    words = shlex.split(command)
    program = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", ROOT / "build" / "bin"), words[0])
    done = subprocess.run([str(program), *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    # A verdict is on stdout, the reason of a failure on stderr; progress is not for documents.
    lines = (done.stdout if done.returncode in (0, 3) else done.stdout + done.stderr).rstrip("\n").splitlines()
    if done.returncode:
        lines.append(f"(exit {done.returncode})")
    return [line.rstrip() for line in lines]


def same(expected, real):
    return DURATION.sub("_ s", expected.rstrip()) == DURATION.sub("_ s", real.rstrip())


def matches(expected, real):
    """Whether `real` is `expected` with any lines in the place of each elision."""
    if not expected:
        return not real
    if expected[0] == ELISION:
        return any(matches(expected[1:], real[i:]) for i in range(len(real) + 1))
    return bool(real) and same(expected[0], real[0]) and matches(expected[1:], real[1:])


def shortened(expected, real):
    """The real lines, cut where the document cuts them: only a cut before the last line, (exit N), is kept."""
    if ELISION not in expected:
        return real
    kept = real[:expected.index(ELISION)] + [ELISION]
    return kept + [line for line in real[-1:] if line.startswith("(exit")]


def parts(block):
    """(command, expected lines) for each command of a block."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
    return found


def check_block(block, folder, problems):
    pieces = []
    for command, expected in parts(block):
        if not command.startswith("vramfit "):
            pieces += ["$ " + command, *expected]
            continue
        real = run(command, folder)
        if not matches(expected, real):
            problems.append(f"$ {command}\nREADME.md says:\n" + "\n".join(expected) + "\nprinted:\n" + "\n".join(real) + "\n")
        pieces += ["$ " + command, *shortened(expected, real)]
    return "\n".join(pieces) + "\n"


def main():
    text = README.read_text(encoding="utf-8")
    problems, commands = [], sum(block.count("$ vramfit ") for block in BLOCK.findall(text))
    with tempfile.TemporaryDirectory() as folder:
        updated = BLOCK.sub(lambda match: check_block(match.group(0), folder, problems), text)
    if "--update" in sys.argv:
        README.write_text(updated, encoding="utf-8")
        return 0
    print("\n".join(problems) + f"README.md: {commands} commands, {len(problems)} with other output than it says"
          + (" (tests/docs/readme.py --update rewrites it)" if problems else ""))
    return 1 if problems or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
