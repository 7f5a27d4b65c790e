"""Published peaks of torchtitan compared with rehearsed and estimated ones: the tables of docs/accuracy.md.

    accuracy.py write      runs every row of configs/published/torchtitan.json and writes the tables
    accuracy.py check      runs the rows of pull request 822 and fails if a limit is exceeded
    accuracy.py check all  the same for every row that has a limit

Limits: rehearsed within 0.2 % of what was published, if the source states everything; estimated within 0.1 % (allocated) and
0.5 % (reserved) of rehearsed.
"""

import json
import pathlib
import re
import statistics
import sys

from readings import Case, estimate, rehearse  # which puts the folder above on the path
from figures import write_between

ROOT = pathlib.Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "configs" / "published" / "torchtitan.json"
PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- torchtitan: written by scripts/accuracy -->", "<!-- torchtitan: end -->"
GIB = 2**30
PUBLISHED_LIMIT, ALLOCATED_LIMIT, RESERVED_LIMIT = 0.002, 0.001, 0.005
STEPS = 3


def figures_of_run(case, allocator):
    """{"first": {...}, "steady": {...}}, bytes; or {"oom": {...}}; or {"failed": why}."""
    report, error = rehearse(case, allocator, STEPS)
    if report is None:
        if "OutOfMemoryError" not in error:
            return {"failed": re.findall(r"\w*Error: [^\n]*", error)[-1]}
        said = re.search(r"([\d.]+) ([GM]iB) is allocated by PyTorch, and ([\d.]+) ([GM]iB) is reserved", error)
        allocated, idle = (float(said[i]) * (GIB if said[i + 1] == "GiB" else GIB // 1024) for i in (1, 3))
        return {"oom": {"allocated": allocated, "reserved": allocated + idle}}
    def peaks(steps):
        return {"allocated": max(s["peak_allocated"] for s in steps), "reserved": max(s["peak_reserved"] for s in steps)}
    return {"first": peaks(report["steps"][:1]), "steady": peaks(report["steps"][1:])}


def figures_of_estimate(case, allocator):
    """The same, or None and why there are none."""
    answer, why = estimate(case, allocator)
    if answer is None:
        return None, why
    if answer["verdict"] == "not_modelled":
        return None, answer["why"]
    phases = answer["ranks"][answer["worst"]]["phases"]
    return {step: {name: max(p[f"peak_{name}_bytes"] for p in phases if p["step"] == step) for name in ("allocated", "reserved")}
            for step in ("first", "steady")}, None


class Reading:
    """One row under one allocator."""

    def __init__(self, row, allocator):
        self.row, self.allocator = row, allocator
        job = {**row["job"], "other": tuple(row["job"].get("other", ()))}
        job.pop("allocator")
        self.case = Case(**job)
        self.run = figures_of_run(self.case, allocator)
        self.estimate, self.why = figures_of_estimate(self.case, allocator)
        print(row["shown"], allocator, *self.cells(), sep=" | ", flush=True)

    def published(self, step):
        return next((m["gib"] for m in self.row["measured"]
                     if m["step"] == step and "reserved" in m["statistic"] and "OOM" not in m["statistic"]), None)

    def is_confirmed(self):
        return "differs" not in self.row and len(self.row["job"]["allocator"]) == 1

    def failures(self):
        name = f"{self.row['id']}, {self.allocator}"
        if "failed" in self.run and self.is_confirmed():
            yield f"{name}: {self.run['failed']}"
        for step in ("first", "steady"):
            if step not in self.run:
                continue
            value = self.published(step)
            if self.is_confirmed() and value and abs(self.run[step]["reserved"] / GIB / value - 1) > PUBLISHED_LIMIT:
                yield f"{name}, {step}: rehearsed {gib(self.run[step]['reserved'])}, published {value}"
            for what, limit in (("allocated", ALLOCATED_LIMIT), ("reserved", RESERVED_LIMIT)):
                if self.estimate and abs(self.estimate[step][what] / self.run[step][what] - 1) > limit:
                    yield f"{name}, {step}: estimated {what} {gib(self.estimate[step][what])}, rehearsed {gib(self.run[step][what])}"

    def cells(self):
        """One line of a table."""
        published = " / ".join(f"{self.published(s):.2f}" if self.published(s) else "-" for s in ("first", "steady"))
        if "first" not in self.run:
            return self.published_failure(), self.failure(), "", self.estimated(), ""
        rehearsed = " / ".join(gib(self.run[s]["reserved"]) for s in ("first", "steady"))
        value = self.published("steady")
        error = percent(self.run["steady"]["reserved"] / GIB / value - 1) if value else ""
        agreement = ""
        if self.estimate:
            agreement = ", ".join(f"{percent(self.estimate['steady'][what] / self.run['steady'][what] - 1)}"
                                  for what in ("allocated", "reserved"))
        return published, rehearsed, error, self.estimated(), agreement

    def published_failure(self):
        said = {m["statistic"].split()[0]: m["gib"] for m in self.row["measured"]}
        if "allocated" not in said:
            return " / ".join(f"{gib_published:.2f}" for gib_published in said.values())
        return f"out of memory at {said['allocated']:.2f} allocated, {said['reserved']:.2f} reserved"

    def failure(self):
        if "failed" in self.run:
            return f"not rehearsed: {self.run['failed']}"
        return f"out of memory at {gib(self.run['oom']['allocated'])} allocated, {gib(self.run['oom']['reserved'])} reserved"

    def estimated(self):
        if self.estimate is None:
            return self.why
        return " / ".join(gib(self.estimate[s]["reserved"]) for s in ("first", "steady"))


def gib(count):
    return f"{count / GIB:.3f}"


def percent(x):
    return f"{100 * x:+.2f} %"


def table(readings, with_reason):
    head = ["case", "allocator", "published", "rehearsed", "error", "estimated", "estimated - rehearsed: allocated, reserved"]
    lines = ["| " + " | ".join(head + (["what is unknown"] if with_reason else [])) + " |", "|-" * (len(head) + with_reason) + "|"]
    for reading in readings:
        cells = [reading.row["shown"], reading.allocator, *reading.cells()]
        lines.append("| " + " | ".join(cells + ([reading.row.get("differs", "allocator")] if with_reason else [])) + " |")
    return lines


def errors(readings, figures_of):
    """Signed errors of steady reserved peaks against what was published, of rows that have both."""
    found = []
    for reading in readings:
        figures, value = figures_of(reading), reading.published("steady")
        if value and figures and "steady" in figures:
            found.append(figures["steady"]["reserved"] / GIB / value - 1)
    return found


def summary(groups):
    """Median and worst absolute errors of each group of readings."""
    lines = ["| what the source says | rows | estimated: median, worst | rows | rehearsed: median, worst |", "|-|-|-|-|-|"]
    for name, readings in groups:
        cells = [name]
        for figures_of in (lambda r: r.estimate, lambda r: r.run):
            found = errors(readings, figures_of)
            sizes = sorted(map(abs, found))
            cells += [str(len(found)), f"{100 * statistics.median(sizes):.2f} %, {percent(max(found, key=abs))}" if found else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def sources(rows):
    return [f"- {row['shown']}: {row['origin']['repo']}, {row['origin']['path_or_thread']} ({row['origin']['ref']})" for row in rows]


def write(rows):
    readings = [Reading(row, allocator) for row in rows for allocator in row["job"]["allocator"]]
    confirmed = [r for r in readings if r.is_confirmed()]
    unstated = [r for r in readings if "differs" not in r.row and not r.is_confirmed()]
    others = [r for r in readings if "differs" in r.row]
    text = ["", "The source states every setting (limit 0.2 %):", "", *table(confirmed, False), "",
            "The source does not state the allocator, so these rows are consistent with the published figures but do not confirm them:",
            "", *table(unstated, False), "",
            "All other published figures that we collected, with none left out:", "", *table(others, True)]
    text += ["", "Reserved peaks of steady steps against what was published, row by row above:", "",
             *summary([("every setting", confirmed), ("all but the allocator; each is tried", unstated),
                       ("less, or another PyTorch", others)])]
    text += ["", "Sources:", "", *sources(rows), "", ""]
    write_between(PAGE, BEGIN, END, text)
    return readings


def main(arguments):
    rows = json.loads(PUBLISHED.read_text(encoding="utf-8"))["rows"]
    if arguments == ["write"]:
        readings = write(rows)
    else:
        chosen = [row for row in rows if arguments == ["check", "all"] or "pr822" in row["id"]]
        readings = [Reading(row, allocator) for row in chosen for allocator in row["job"]["allocator"]]
    failures = [line for reading in readings for line in reading.failures()]
    print("\n".join(failures) or "all within limits")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
