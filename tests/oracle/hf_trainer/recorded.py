"""Events of rehearsals as hashes in a file, for comparing counted ones without the libraries."""

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json

from compare_events import by_step


def summary(steps):
    """Of each step: how many allocations, and a hash of all of them with what was freed before each."""
    found = {}
    for step, allocations in steps.items():
        plain = [[size, stream, sorted([*block, count] for block, count in freed.items())] for size, stream, freed, _ in allocations]
        found[step] = {"allocations": len(plain), "sha256": hashlib.sha256(json.dumps(plain).encode()).hexdigest()}
    return found


def record(path, script, libraries, cases, rehearsed_events):
    """Writes what `rehearsed_events` gives for each case; `libraries`: the names of those whose versions count."""
    versions = {name: importlib.metadata.version(name) for name in libraries}
    found = [{"case": dataclasses.asdict(case), "steps": summary(by_step(rehearsed_events(case)))} for case in cases]
    origin = {"script": f"tests/oracle/hf_trainer/{script} record", "versions": versions, "date": datetime.date.today().isoformat()}
    path.write_text(json.dumps({"origin": origin, "cases": found}, indent=1) + "\n", encoding="utf-8")


def failures_of_recorded(path, case_of, counted_events, changed):
    """How many of the file's cases differ, each printed. `case_of` makes a case of its fields; the events of `changed` of the last one, another job, must differ."""
    failures = 0
    for known in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        case = case_of(known["case"])
        found = summary(by_step(counted_events(case)))
        failures += found != known["steps"]
        print(case, "equal" if found == known["steps"] else f"\n  recorded {known['steps']}\n  counted  {found}")
    assert summary(by_step(counted_events(changed(case)))) != known["steps"], "another job's events pass for these"
    return failures
