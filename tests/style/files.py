"""Length of code files, words that mark unfinished work, and marks of merges."""
import re
import sys

from tree import ROOT, is_code, report, tracked_files

MAX_LINES = 400
# Written in two halves so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join([
    "TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "not " + "implemented", "un" + "implemented", "for " + "now",
    "place" + "holder", "st" + "ub(bed)?" + r" (it )?out", "dummy " + "value", "coming " + "soon"]) + r")\b", re.I)
MACHINE_PATH = re.compile(r"(?<![\w./-])/(work|home|Users)/\w")
MERGE_MARK = re.compile(r"(<{7}|>{7}|={7}$|\|{7})( |$)")
TEXT = {".md", ".json", ".txt", ".yml", ".yaml", ".toml", ""}


def problems_in(path, text):
    lines = text.splitlines()
    if is_code(path) and len(lines) > MAX_LINES:
        yield f"{path}: {len(lines)} lines, more than {MAX_LINES}: split it"
    for number, line in enumerate(lines, 1):
        match = UNFINISHED.search(line)
        if match:
            yield f'{path}:{number}: "{match.group(0)}": finish it, or say in docs/roadmap.md what is open'
        if MERGE_MARK.match(line):
            yield f"{path}:{number}: what a merge left behind"
        if MACHINE_PATH.search(line):
            yield f"{path}:{number}: a path of one machine: {line.strip()[:80]}"
        if "\t" in line and path.suffix in {".cpp", ".h", ".py"}:
            yield f"{path}:{number}: a tab"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at its end"


def main():
    problems = []
    for path in tracked_files():
        if not (is_code(path) or path.suffix in TEXT):
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary test file
        problems += problems_in(path, text)
    return report(problems, "files")


if __name__ == "__main__":
    sys.exit(main())
