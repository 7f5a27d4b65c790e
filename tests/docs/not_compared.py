"""The table of published peaks that nothing is compared with, on docs/accuracy.md, from configs/published/not_compared.json.

    not_compared.py write|check
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "oracle"))
from figures import write_between  # noqa: E402

PAGE = ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- not compared: written by scripts/accuracy -->", "<!-- not compared: end -->"


def published(name):
    return json.loads((ROOT / "configs" / "published" / name).read_text(encoding="utf-8"))


def figures(row):
    said = [f"{value:.2f}" for value in row.get("published", [])] + ["oom"] * row.get("out_of_memory", False)
    return " / ".join(said or ["-"]) + (" GB" if row.get("unit") == "GB" else "")


def table(kept):
    lines = ["| why not | rows | framework | GPUs | published |", "|-|-|-|-|-|"]
    for reason, why in kept["reasons"].items():
        rows = [row for row in kept["rows"] if row["reason"] == reason]
        jobs = {}
        for row in rows:
            jobs.setdefault((row["framework"], row["gpus"]), []).append(figures(row))
        for number, ((framework, gpus), found) in enumerate(jobs.items()):
            first = (why, str(len(rows))) if number == 0 else ("", "")
            lines.append("| " + " | ".join((*first, framework, gpus, ", ".join(found))) + " |")
    return lines


def main(arguments):
    kept, compared = published("not_compared.json"), published("torchtitan.json")
    names = [row["id"] for row in kept["rows"] + compared["rows"]]
    assert len(set(names)) == len(names), "a row is listed twice"
    assert {row["reason"] for row in kept["rows"]} == set(kept["reasons"])
    text = PAGE.read_text(encoding="utf-8")
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    lines = ["", *table(kept), "", ""]
    if arguments == ["write"]:
        write_between(PAGE, BEGIN, END, lines)
    elif text[first:last] != "\n" + "\n".join(lines):
        print("docs/accuracy.md: the table of what isn't compared differs from its data; run scripts/accuracy")
        return 1
    print(f"{len(kept['rows'])} of {len(names)} published rows are compared with nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
