"""Events of rehearsals as hashes in a file, for comparing counted ones without the libraries."""

import collections.abc
import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys

from compare_events import by_step, failures_of, first_difference, rebuilt_buckets, without_rebuilt_buckets

SKIPPED = 77  # exit code
REBUILT = "buckets made anew"


def summary(steps):
    """Of each step: how many allocations, and a hash of all of them with what was freed before each."""
    found = {}
    for step, allocations in steps.items():
        plain = [[size, stream, sorted([*block, count] for block, count in freed.items())] for size, stream, freed, _ in allocations]
        found[step] = {"allocations": len(plain), "sha256": hashlib.sha256(json.dumps(plain).encode()).hexdigest()}
    return found


def buckets_apart(kept, made):
    """DDP's second set of buckets as a step of its own: a rehearsal makes them in another step than they are counted in. What was freed before the first of them is told elsewhere."""
    size, stream, _, label = made[0]
    return {**kept, REBUILT: [(size, stream, {}, label), *made[1:]]}


def rehearsed_summary(rehearsed, counted):
    """Of what was rehearsed; `counted` tells which buckets are the second set, if it has one."""
    kept, _ = without_rebuilt_buckets(rehearsed, counted)
    return summary(rehearsed if kept is rehearsed else buckets_apart(kept, rebuilt_buckets(counted)[0]))


def counted_summary(counted, known):
    """Of what is counted, as the summary `known` of a rehearsal has it."""
    made, kept = rebuilt_buckets(counted)
    return summary(buckets_apart(kept, made) if made and REBUILT in known else counted)


def difference_of(known, found):
    """In words, or None."""
    for step in [*known, *(step for step in found if step not in known)]:
        there, here = known.get(step), found.get(step)
        if there != here:
            return f"{step}: recorded {there or 'nothing'}, counted {here or 'nothing'}"
    return None


def public(version):
    """Without what names the build: 2.11.0 of 2.11.0+cpu."""
    return version.split("+")[0]


def installed(library):
    """Its version here, or None."""
    try:
        return public(importlib.metadata.version(library))
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclasses.dataclass
class Comparison:
    """Cases of a test, some of which are recorded in a file.

    Parts: `recorded` compares what is counted with the file, which `record` writes. `sample`, `few` and `live` rehearse some of the recorded cases, all of them, and others
    too. `show NUMBER` rehearses one of the file's, and prints the first allocation that differs. Each record has all fields of its case, so a default may change.
    """
    script: pathlib.Path  # the test, beside which its file is
    case_type: type
    libraries: list  # their names, whose versions count
    warm: collections.abc.Callable  # a process that has imported them
    rehearsed: collections.abc.Callable  # events of a case, by what `warm` gave
    counted: collections.abc.Callable
    changed: collections.abc.Callable  # another job than a case, whose events differ
    few: list = ()  # cases that `record` records
    sample: list = ()  # of these
    more: list = ()  # not recorded
    are_optional: bool = False  # the libraries: the tests' own Python lacks some
    are_drawn: bool = False  # the cases: `few` are the file's but in `record`

    @property
    def path(self):
        return self.script.with_name(self.script.name.replace("_test.py", ".json"))

    def command(self, words):
        return f"{os.path.relpath(self.script, self.script.parents[3])} {words}"

    def file(self):
        return json.loads(self.path.read_text(encoding="utf-8"))

    def records(self):
        """Each case of the file with the summary of its steps. They are those of `few`."""
        cases = self.file()["cases"]
        names = {field.name for field in dataclasses.fields(self.case_type)}
        for number, known in enumerate(cases, 1):
            assert set(known["case"]) == names, f"{self.path.name}, case {number}: a record has all fields and no others: {sorted(names ^ set(known['case']))}"
        wanted = None if self.are_drawn else [json.loads(json.dumps(dataclasses.asdict(case))) for case in self.few]
        assert wanted in (None, [known["case"] for known in cases]), f"{self.path.name} has other cases than the test: {self.command('record')}"
        return [(self.case_type(**known["case"]), known["steps"]) for known in cases]

    def outdated(self):
        """Libraries that are there with another version than was recorded, each printed."""
        origin = self.file()["origin"]
        others = {name: version for name in self.libraries if (version := installed(name)) and version != public(origin["versions"][name])}
        for name, version in others.items():
            print(f"recorded of {name} {origin['versions'][name]}, here is {version}: {origin['script']}")
        return others

    def failures_of_recorded(self):
        """How many of the file's cases differ, each printed. The events of `changed` of the last one, another job, must differ."""
        failures = len(self.outdated())
        records = self.records()
        assert records, f"{self.path.name} has no cases"
        for number, (case, known) in enumerate(records, 1):
            difference = difference_of(known, counted_summary(by_step(self.counted(case)), known))
            failures += difference is not None
            print(f"{number} {case}: {difference or 'equal'}")
            if difference:
                print(f"  The first allocation that differs: {sys.executable} {self.command(f'show {number}')}")
        other = by_step(self.counted(self.changed(case)))
        assert difference_of(known, counted_summary(other, known)), "another job's events pass for these"
        return failures

    def record(self, cases, rehearsed, words):
        """Writes the file; `words` are the arguments that had it written."""
        lines = []
        for case in cases:
            steps = rehearsed_summary(by_step(rehearsed(case)), by_step(self.counted(case)))
            lines.append(json.dumps({"case": dataclasses.asdict(case), "steps": steps}))
            print(case, flush=True)
        versions = {name: public(importlib.metadata.version(name)) for name in self.libraries}
        origin = {"script": self.command(words), "versions": versions, "date": datetime.date.today().isoformat()}
        self.path.write_text(f'{{"origin": {json.dumps(origin)},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")

    def cases_of(self, part):
        few = [case for case, _ in self.records()] if self.are_drawn else self.few
        cases = {"sample": self.sample, "few": few, "live": [*few, *self.more]}[part]
        if not cases:
            sys.exit(f"{self.script.name} has no cases for {part}")
        return cases

    def differs(self, number, rehearsed):
        case, _ = self.records()[number - 1]
        difference = first_difference(by_step(rehearsed(case)), by_step(self.counted(case)))
        print(f"{case}\n  {difference or 'the rehearsal is equal to what is counted, so the record is of something else: ' + self.file()['origin']['script']}")
        return difference is not None

    def run(self, part, *numbers):
        """An exit code."""
        if part == "recorded":
            return 1 if self.failures_of_recorded() else 0
        if self.are_optional and not with_libraries(self.libraries):
            print(f"skipped: {sys.executable} lacks some of {', '.join(self.libraries)}")
            return SKIPPED
        with self.warm() as libraries:
            rehearsed = lambda case: self.rehearsed(case, libraries)
            if part == "record":
                self.record(self.few, rehearsed, " ".join([part, *numbers]))
                return 0
            if part == "show":
                return 1 if self.differs(int(numbers[0]), rehearsed) else 0
            return 1 if failures_of(self.cases_of(part), rehearsed, self.counted, self.changed) or self.outdated() else 0


def with_libraries(names):
    """Whether they are there, in the Python that is to have them: $VRAMFIT_RECIPES_PYTHON, with which this starts again, or the one that runs this."""
    python = os.environ.get("VRAMFIT_RECIPES_PYTHON")
    if python and os.environ.get("VRAMFIT_RECIPES_STARTED") != "1":
        os.execve(python, [python, *sys.argv], {**os.environ, "VRAMFIT_RECIPES_STARTED": "1"})
    return all(installed(name) for name in names)
