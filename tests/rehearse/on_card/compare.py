"""Compares what cards.py kept of a GPU with what it kept of a phantom GPU: compare.py CARD PHANTOM [--verbose]."""

import argparse
import collections
import gzip
import json
import pathlib
import re

LEVELS = ["every event equal", "order of frees differs", "places differ", "frees differ", "allocations differ"]
PEAKS = ("peak_reserved", "peak_allocated", "peak_requested", "retries", "oom")


def reports(folder):
    lines = (folder / "jobs.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def events(folder):
    """Job -> step -> lines as (kind, bytes, stream, place)."""
    jobs, steps = {}, {}
    with gzip.open(folder / "events.gz", "rt", encoding="utf-8") as file:
        try:
            for line in file:
                words = line.rstrip("\n").split(" ", 1)
                if words[0] == "@":
                    steps = jobs[words[1]] = {}
                elif words[0] == "#":
                    rows = steps[words[1]] = []
                else:
                    size, stream, place = words[1].split(" ")
                    rows.append((words[0], int(size), int(stream), place))
        except EOFError:
            print(f"{folder}/events.gz ends early")
    return jobs


def gaps(rows, keys):
    """Allocations and segments in order, each with the frees since the one before as a multiset."""
    out, freed = [], collections.Counter()
    for row in rows:
        if row[0] in "-fu":
            freed[row[0], *keys(row)] += 1
        else:
            out.append((row[0], *keys(row), freed))
            freed = collections.Counter()
    return [*out, freed]


def with_places(row):
    return row[1:]


def without_places(row):
    return row[1:3]


def allocations(rows):
    return [row[1:3] for row in rows if row[0] == "+"]


def level_of(one, other):
    if one == other:
        return 0
    if gaps(one, with_places) == gaps(other, with_places):
        return 1
    own = [[row for row in rows if row[0] in "+-"] for rows in (one, other)]
    if gaps(own[0], without_places) == gaps(own[1], without_places):
        return 2
    return 3 if allocations(one) == allocations(other) else 4


def first_difference(one, other, of):
    one, other = of(one), of(other)
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return at, one[max(0, at - 2):at + 3], other[max(0, at - 2):at + 3], len(one), len(other)


def peaks_of(card, phantom):
    """Lines about the steps whose peaks differ."""
    for here, there in zip(card["steps"], phantom["steps"]):
        differing = [f"{key} {here[key]} (phantom {there[key]}, {100 * (there[key] / here[key] - 1) if here[key] else 0:+.3f} %)" for key in PEAKS if here[key] != there[key]]
        if differing:
            yield f"{here['step']}: " + ", ".join(differing)
    if len(card["steps"]) != len(phantom["steps"]):
        yield f"{len(card['steps'])} steps, phantom {len(phantom['steps'])}"


def said(report):
    """What PyTorch says when memory runs out, without process numbers and what is outside the allocator."""
    return re.sub(r"(Process \d+ has .*?in use\. )|(Including non-PyTorch memory, .*?in use\. )|( of which .*? is free)", "", report.get("out_of_memory", ""))


def until_out_of_memory(steps):
    """What comes after the last failure, if it ended the job, is freed as Python unwinds."""
    step, rows = list(steps.items())[-1]
    last = max((number for number, row in enumerate(rows) if row[0] == "o"), default=len(rows) - 1)
    return {**steps, step: rows[:last + 1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("card", type=pathlib.Path)
    parser.add_argument("phantom", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    reports_of, events_of = [reports(options.card), reports(options.phantom)], [events(options.card), events(options.phantom)]
    table = collections.Counter()
    for name, card in reports_of[0].items():
        phantom = reports_of[1].get(name)
        if phantom is None or "steps" not in card or "steps" not in phantom:
            print(f"{name}: NO RESULT: card {card.get('error', 'there')[-400:]!r}, phantom {(phantom or {}).get('error', 'there or not run')[-400:]!r}")
            table["no result"] += 1
            continue
        one, other = events_of[0].get(name, {}), events_of[1].get(name, {})
        if "out_of_memory" in card and "out_of_memory" in phantom:
            one, other = until_out_of_memory(one), until_out_of_memory(other)
        levels = {step: level_of(one[step], other[step]) if step in other else 4 for step in one}
        worst = max((level for step, level in levels.items() if step.startswith("step")), default=4)
        differing = list(peaks_of(card, phantom))
        count = sum(map(len, one.values()))
        table[f"{LEVELS[worst]}, peaks {'differ' if any(line.startswith('step') for line in differing) else 'equal'}"] += 1
        print(f"{name}: {LEVELS[worst]} in steps ({count} events; {', '.join(f'{step} {level}' for step, level in levels.items())}); {card['wall_seconds']} s")
        for line in differing:
            print(f"    {line}")
        if said(card) != said(phantom):
            print(f"    card:    {said(card)}\n    phantom: {said(phantom)}")
        for step, level in levels.items():
            if level and step in other and (options.verbose or (step.startswith("step") and level == worst)):
                of = allocations if level == 4 else list if level < 2 else lambda rows, keys=without_places: gaps([row for row in rows if row[0] in "+-"], keys) if level == 3 else rows
                at, here, there, *lengths = first_difference(one[step], other[step], of)
                print(f"    {step}, {at} of {lengths}: card {here}\n      phantom {there}")
                break
    for text, number in table.most_common():
        print(f"{number} jobs: {text}")


if __name__ == "__main__":
    main()
