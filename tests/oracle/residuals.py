"""What recorded cases needed beyond their prediction, from which upper bounds are made (docs/upper-bound.md): configs/residuals/.

    residuals.py write     estimates the published cases again, and writes reserved.json and outside.json
    residuals.py check     fails if one of them would change, if a published peak is above its bound of the highest confidence, or if a job that ran out of memory is said to fit
    residuals.py rehearse  makes the rehearsals of rehearsed.json again, and writes it
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "oracle" / "torchtitan_like"))
from readings import PROGRAMS, Case, estimate  # noqa: E402  which puts the folder above on the path
from figures import run  # noqa: E402

RESIDUALS = ROOT / "configs" / "residuals"
PUBLISHED = ROOT / "configs" / "published" / "torchtitan.json"
GIB, MIB = 2**30, 2**20
MOST = "0.9"  # the highest confidence that all kinds of cases support


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(document, cases):
    """One case a line, so that changes show."""
    head = json.dumps({name: value for name, value in document.items() if name != "cases"}, indent=1)
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    return head.removesuffix("\n}") + ',\n "cases": [\n' + lines + "\n ]\n}\n"


def published_peak(row):
    """The highest reserved peak of a row, in bytes; None where it ran out of memory."""
    found = [m["gib"] for m in row["measured"] if "max_reserved" in m["statistic"]]
    return round(max(found) * GIB) if found else None


def answer_of(row, allocator):
    """`vramfit estimate --json` of a row."""
    job = {name: value for name, value in row["job"].items() if name != "allocator"}
    answer, why = estimate(Case(**job), allocator, "--confidence", MOST)
    assert answer is not None and answer["verdict"] != "not_modelled", (row["id"], why)
    return answer


def worst_of(answer):
    return answer["ranks"][answer["worst"]]


def reserved_cases():
    """A row whose source doesn't say the allocator counts by the one that is predicted to need less."""
    cases = []
    for row in read(PUBLISHED)["rows"]:
        observed = published_peak(row)
        if observed is None or row["job"].get("other"):
            continue
        predicted = {allocator: worst_of(answer_of(row, allocator))["peak_reserved_bytes"] for allocator in row["job"]["allocator"]}
        least = min(predicted, key=predicted.get)
        origin = row["origin"]
        cases.append({"runtime": "pytorch-fsdp2", "case": row["id"], "predicted_bytes": predicted[least], "observed_bytes": observed,
                      "source": f"{origin['repo']}, {origin['path_or_thread']} ({origin['ref']})", "of": {"allocator": least, "card": row["card"]}})
    return cases


def outside_cases(known):
    """The same cases with what the catalog of cards says today."""
    cards = {card["name"]: card for card in read(ROOT / "configs" / "gpus.json")["cards"]}
    cases = []
    for case in known:
        of = case["of"]
        predicted = cards[of["card"]]["context_mib"][0] + of["communicators"] * cards[of["card"]]["nccl_mib"][0]
        observed = of["in_use_gib"] - of["allocated_gib"] - of["unallocated_gib"]
        cases.append({**case, "predicted_bytes": predicted * MIB, "observed_bytes": round(observed * GIB)})
    return cases


def made():
    """File names and their texts as they should be."""
    documents = {name: read(RESIDUALS / f"{name}.json") for name in ("reserved", "outside")}
    return {"reserved.json": text_of(documents["reserved"], reserved_cases()),
            "outside.json": text_of(documents["outside"], outside_cases(documents["outside"]["cases"]))}


def failures():
    """Published peaks above the bound that is printed for them, and jobs that ran out of memory and are said to fit."""
    for row in read(PUBLISHED)["rows"]:
        if row["job"].get("other"):
            continue
        for allocator in row["job"]["allocator"]:
            answer = answer_of(row, allocator)
            observed, worst = published_peak(row), worst_of(answer)
            if observed is None and answer["verdict"] == "fits":
                yield f"{row['id']}, {allocator}: ran out of memory, and fits"
            elif observed and observed + worst["breakdown"]["outside_allocator"] > worst["upper_bound_bytes"] - answer["bound"]["outside_margin_bytes"]:
                yield f"{row['id']}, {allocator}: {observed} reserved are above the bound"
    for row in read(ROOT / "configs" / "published" / "out_of_memory.json")["rows"]:
        flags = [word for name, value in row["job"].items() for word in ("--" + name.replace("_", "-"), value)]
        for confidence in ((), ("--confidence", MOST)):
            verdict = json.loads(run([PROGRAMS / "vramfit", "estimate", row["model"], "--gpus", row["gpus"], *flags, *confidence, "--json"]))["verdict"]
            if verdict not in ("does_not_fit", "at_risk"):
                yield f"{row['id']}: ran out of memory, and {verdict} {' '.join(confidence)}"


def main(arguments):
    if arguments == ["rehearse"]:
        import rehearsed_residuals  # needs transformers

        rehearsed_residuals.write(RESIDUALS / "rehearsed.json", text_of)
        return 0
    changed = []
    for name, text in made().items():
        path = RESIDUALS / name
        if path.read_text(encoding="utf-8") == text:
            continue
        changed.append(name)
        if arguments == ["write"]:
            path.write_text(text, encoding="utf-8")
    print("\n".join(f"{name}: {'written' if arguments == ['write'] else 'differs; run scripts/residuals'}" for name in changed) or "nothing changed")
    failed = [] if arguments == ["write"] else list(failures())
    print("\n".join(failed))
    return 1 if failed or (changed and arguments != ["write"]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
