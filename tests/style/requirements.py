"""pip installs what the locked lists name, each package with the hashes of its wheels, and nothing without."""
import re
import sys

from tree import ROOT, report, tracked_files

SCRIPTS = ROOT / "scripts"
LOCKED = {"requirements-locked.txt": ["requirements-run.txt", "requirements-test.txt"],
          "requirements-phantom-locked.txt": ["requirements-phantom.txt"],
          "requirements-wheel-locked.txt": ["requirements-wheel.txt"]}
HASHED = re.compile(r"^([a-z0-9-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+)$")
# torch brings many packages along, hatchling a few.
FEWEST = {"requirements-wheel-locked.txt": 5}
# What scripts/phantom-wheel tries is what an index has on that day, so no list can name it beforehand.
ON_THE_DAY = {"scripts/phantom-wheel": 1}


def lines_of(name):
    """Without comments, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (SCRIPTS / name).read_text(encoding="utf-8")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


def problems_of_list(target, sources):
    found = {}
    for line in lines_of(target):
        match = HASHED.match(line)
        if match:
            found[match.group(1)] = match.group(2)
        else:
            yield f"scripts/{target}: no package with its hashes: {line[:80]}"
    for source in sources:
        for line in lines_of(source):
            name, _, version = line.partition("==")
            if found.get(name.lower()) != version:
                yield f"scripts/{target} has not {line} of {source}: run scripts/lock-requirements"
    if len(found) < FEWEST.get(target, 20):
        yield f"scripts/{target}: {len(found)} packages: those that others bring along are missing"


def problems_of_calls():
    """Every pip install but those that are listed above asks for hashes."""
    for path in tracked_files():
        if path.suffix in {".md", ".txt", ".json"} or path.name in {"lock-requirements", "requirements.py"}:
            continue
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
        calls = [line for line in text.splitlines() if re.search(r"\bpip install\b", line)]
        unchecked = [line for line in calls if "--require-hashes" not in line]
        if len(unchecked) > ON_THE_DAY.get(str(path), 0):
            yield f"{path}: pip install without --require-hashes: {unchecked[0].strip()[:80]}"


def main():
    problems = [problem for target, sources in LOCKED.items() for problem in problems_of_list(target, sources)]
    return report(problems + list(problems_of_calls()), "requirements")


if __name__ == "__main__":
    sys.exit(main())
