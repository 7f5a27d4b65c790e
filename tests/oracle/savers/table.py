"""What each memory saver saves and costs on Llama-3.1-8B, beside the library that people use for it: the tables of docs/savers.md.

    table.py write     estimates and rehearses everything and writes the tables and the figures as JSON
    table.py go-on     the same for the rows that are missing: `write` keeps each row when it has it
    table.py render    writes the tables again from the stored figures
    table.py check     estimates everything again and fails if an estimate differs from the stored one
    table.py try NAME  one saver, on the screen
"""

import datetime
import json
import os
import pathlib
import sys
import tempfile

from savers import BASE, CARD, CARDS, MODEL, SAVERS, SEQUENCE

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from figures import keep, last_object, run, write_between  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", ROOT / "build" / "release" / "bin"))
DATA = ROOT / "configs" / "published" / "savers.json"
PAGE = ROOT / "docs" / "savers.md"
BEGIN, END = "<!-- written by scripts/savers -->", "<!-- end -->"
GIB = 2**30
ABOUT = ("Memory savers on Llama-3.1-8B: predicted for vramfit's engine, and rehearsed on phantom GPUs with the libraries that people use; nothing was "
         "measured on a card. Bytes of the caching allocator, rank 0, over the first three steps.")


def estimate(saver, cards):
    fields = {**BASE, **saver.flags}
    flags = [word for name, value in fields.items() for word in ("--" + name, value)]
    if not saver.clips:
        flags.append("--no-clip")
    answer = json.loads(run([PROGRAMS / "vramfit", "estimate", MODEL, "--gpus", f"{cards}x{CARD}", "--stack", "vramfit", "--json", *flags]))
    if answer["verdict"] == "not_modelled":
        raise SystemExit(f"{saver.name}: not modelled: {answer['why']}")
    rank = answer["ranks"][answer["worst"]]
    return {"allocated": rank["peak_allocated_bytes"], "reserved": rank["peak_reserved_bytes"], "host": answer["host_bytes"],
            "step_seconds": round(answer["speed"]["step_seconds"], 4)}


def rehearse(library, cards):
    """Rank 0 of the library's run; with weights of no value where it quantizes what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        run([PROGRAMS / "vramfit", "fake-weights", MODEL, folder, "--dtype", "bf16"])
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", cards] if cards > 1 else []
        out = run([PROGRAMS / "vramfit", "rehearse", "--gpus", f"{cards}x{CARD}", "--ranks", "0", "--", sys.executable, *launcher, FOLDER / "library.py",
                   pathlib.Path(folder, "config.json"), "--sequence", SEQUENCE, *library.options], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, timeout=900)
    return last_object(out)


def read(saver, cards):
    libraries = [{"name": library.name, "options": list(library.options), **rehearse(library, cards)} for library in saver.libraries if cards in library.cards]
    row = {"saver": saver.name, "cards": cards, "flags": saver.flags, "clips": saver.clips, "vramfit": estimate(saver, cards), "libraries": libraries}
    print(*cells(row, row), sep=" | ", flush=True)
    return row


def rows_of(savers, known=()):
    """Each in turn, in the order of the page; of those that are known, as it is."""
    for cards in CARDS:
        for saver in savers:
            if cards in saver.cards:
                yield next((row for row in known if (row["saver"], row["cards"]) == (saver.name, cards)), None) or read(saver, cards)


def measure(known):
    import torch
    kept = {"about": ABOUT, "kind": "rehearsed and predicted", "torch": torch.__version__, "date": datetime.date.today().isoformat(), "rows": []}
    for row in rows_of(SAVERS, known):
        kept["rows"].append(row)
        keep(DATA, kept)
    return kept


def gib(count):
    return f"{count / GIB:.2f}"


def signed(count):
    return f"{count / GIB:+.2f}" if count else ""


def cells(row, none):
    """`none` is the row of the same number of cards without a saver."""
    ours, before = row["vramfit"], none["vramfit"]
    flags = " ".join(f"--{name} {value}" for name, value in row["flags"].items())
    slower = ours["step_seconds"] / before["step_seconds"] - 1
    others = "; ".join(f"{one['name']}: {gib(one['allocated'])} / {gib(one['reserved'])}" for one in row["libraries"])
    return (row["saver"] + (f" (`{flags}`)" if flags else ""), f"{gib(ours['allocated'])} / {gib(ours['reserved'])}", signed(ours["reserved"] - before["reserved"]),
            gib(ours["host"]) if ours["host"] else "", f"{ours['step_seconds']:.3f}", f"{100 * slower:+.0f} %" if row is not none else "", others)


def table(rows):
    yield "| saver | vramfit, predicted | change of reserved | host | step, s | change | libraries, rehearsed |"
    yield "|-|-|-|-|-|-|-|"
    for row in rows:
        yield "| " + " | ".join(cells(row, rows[0])) + " |"


def higher(rows):
    """Where the engine needs more than a library."""
    for row in rows:
        for library in row["libraries"]:
            for figure in ("allocated", "reserved"):
                if row["vramfit"][figure] > library[figure]:
                    yield f"{row['saver']}, {row['cards']} card{'s' if row['cards'] > 1 else ''}: {figure} {gib(row['vramfit'][figure])}, with {library['name']} {gib(library[figure])}"


def render(kept):
    compared = sum(len(row["libraries"]) for row in kept["rows"])
    text = ["", f"torch {kept['torch']} and its libraries on {CARD} (phantom), {kept['date']}. GiB, allocated / reserved.", ""]
    for cards in CARDS:
        text += [f"### {cards} card{'s' if cards > 1 else ''}", "", *table([row for row in kept["rows"] if row["cards"] == cards]), ""]
    above = list(higher(kept["rows"]))
    text += [f"Of {2 * compared} figures of {compared} comparisons with a library, the engine's is higher in {len(above)}" + (":" if above else "."), "", *(f"- {line}" for line in above), *([""] if above else [])]
    write_between(PAGE, BEGIN, END, text)


def failures(kept):
    """What is estimated today and differs from what the page says."""
    named = {saver.name: saver for saver in SAVERS}
    for row in kept["rows"]:
        now = estimate(named[row["saver"]], row["cards"])
        if any(now[figure] != row["vramfit"][figure] for figure in ("allocated", "reserved", "host")):
            yield f"{row['saver']} on {row['cards']} cards: {now}, the page says {row['vramfit']}"


def main(mode, *names):
    if mode == "try":
        list(rows_of([saver for saver in SAVERS if saver.name in names]))
        return 0
    kept = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"rows": []}
    if mode in ("write", "go-on"):
        kept = measure(kept["rows"] if mode == "go-on" else [])
    if mode in ("write", "go-on", "render"):
        render(kept)
    wrong = list(failures(kept)) if mode == "check" else []
    print("\n".join(wrong) or "done")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
