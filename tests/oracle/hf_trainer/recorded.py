"""Events of rehearsals as hashes in a file, for comparing counted ones without the libraries."""

import collections.abc
import dataclasses
import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys

from compare_events import by_step, failures_of, without_counted_buckets, without_rebuilt_buckets

SKIPPED = 77  # exit code


def summary(steps):
    """Of each step: how many allocations, and a hash of all of them with what was freed before each."""
    found = {}
    for step, allocations in steps.items():
        plain = [[size, stream, sorted([*block, count] for block, count in freed.items())] for size, stream, freed, _ in allocations]
        found[step] = {"allocations": len(plain), "sha256": hashlib.sha256(json.dumps(plain).encode()).hexdigest()}
    return found


def record(path, script, libraries, cases, rehearsed_events, counted_events=None):
    """Writes what `rehearsed_events` gives for each case; `libraries`: the names of those whose versions count. With `counted_events`, without DDP's second set of buckets, which those name."""
    def steps_of(case):
        rehearsed = by_step(rehearsed_events(case))
        return without_rebuilt_buckets(rehearsed, by_step(counted_events(case)))[0] if counted_events else rehearsed
    versions = {name: importlib.metadata.version(name) for name in libraries}
    found = [{"case": dataclasses.asdict(case), "steps": summary(steps_of(case))} for case in cases]
    origin = {"script": f"tests/oracle/hf_trainer/{script} record", "versions": versions, "date": datetime.date.today().isoformat()}
    path.write_text(json.dumps({"origin": origin, "cases": found}, indent=1) + "\n", encoding="utf-8")


def failures_of_recorded(path, case_of, counted_events, changed):
    """How many of the file's cases differ, each printed. `case_of` makes a case of its fields; the events of `changed` of the last one, another job, must differ."""
    failures = 0
    for known in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        case = case_of(known["case"])
        found = summary(without_counted_buckets(by_step(counted_events(case))))
        failures += found != known["steps"]
        print(case, "equal" if found == known["steps"] else f"\n  recorded {known['steps']}\n  counted  {found}")
    assert summary(by_step(counted_events(changed(case)))) != known["steps"], "another job's events pass for these"
    return failures


def with_libraries(names):
    """Whether they are there, in the Python that is to have them: $VRAMFIT_RECIPES_PYTHON, with which this starts again, or the one that runs this."""
    python = os.environ.get("VRAMFIT_RECIPES_PYTHON")
    if python and os.environ.get("VRAMFIT_RECIPES_STARTED") != "1":
        os.execve(python, [python, *sys.argv], {**os.environ, "VRAMFIT_RECIPES_STARTED": "1"})
    return all(importlib.util.find_spec(name) for name in names)


@dataclasses.dataclass
class Comparison:
    """Cases of libraries that the tests' own Python lacks, some of them recorded."""
    path: pathlib.Path
    script: str
    libraries: list  # their names, whose versions count
    few: list  # cases that are recorded, too
    more: list
    warm: collections.abc.Callable  # a process that has imported them
    rehearsed: collections.abc.Callable  # events of a case, by what `warm` gave
    counted: collections.abc.Callable
    changed: collections.abc.Callable  # another job than a case, whose events differ

    def run(self, what):
        """`recorded` compares with the file, `record` writes it, `few` rehearses its cases, and `live` all. An exit code."""
        if what == "recorded":
            case_type = type(self.few[0])
            return 1 if failures_of_recorded(self.path, lambda fields: case_type(**fields), self.counted, self.changed) else 0
        if not with_libraries(self.libraries):
            print(f"skipped: {sys.executable} lacks some of {', '.join(self.libraries)}")
            return SKIPPED
        with self.warm() as libraries:
            rehearsed = lambda case: self.rehearsed(case, libraries)
            if what == "record":
                record(self.path, self.script, self.libraries, self.few, rehearsed, self.counted)
                return 0
            cases = self.few if what == "few" else [*self.few, *self.more]
            return 1 if failures_of(cases, rehearsed, self.counted, self.changed) else 0
