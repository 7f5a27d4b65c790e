"""Figures that a script finds, keeps as JSON and shows on a page of docs/, and the programs that it runs for them."""

import json
import os
import subprocess


def run(words, environment=None, timeout=500):
    """Its standard output; SystemExit with what it said when it fails."""
    done = subprocess.run([str(word) for word in words], env={**os.environ, **(environment or {})}, text=True, capture_output=True,
                          timeout=timeout, check=False)
    if done.returncode not in (0, 3):  # 3: an estimate or a rehearsal that does not fit
        raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def last_object(text):
    """The last line that is a JSON object."""
    return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])


def keep(path, kept):
    """Writes {..., "rows": [...]}, one row a line."""
    rows = ",\n".join("  " + json.dumps(row) for row in kept["rows"])
    head = json.dumps({name: value for name, value in kept.items() if name != "rows"}, indent=2)
    path.write_text(head.removesuffix("\n}") + ',\n  "rows": [\n' + rows + "\n  ]\n}\n", encoding="utf-8")


def write_between(page, begin, end, lines):
    """Replaces what is between the two lines of a page."""
    text = page.read_text(encoding="utf-8")
    first, last = text.index(begin) + len(begin), text.index(end)
    page.write_text(text[:first] + "\n" + "\n".join(lines) + text[last:], encoding="utf-8")
