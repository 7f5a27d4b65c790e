"""What each memory saver saves and costs on Llama-3.1-8B, beside the library that people use for it: the tables of docs/savers.md.

    table.py write     estimates and rehearses everything and writes the tables and the figures as JSON
    table.py go-on     the same, but rehearses only what is missing or is asked for otherwise: each rehearsal is kept when it is done
    table.py render    writes the tables again from the stored figures
    table.py check     estimates everything again and fails if an estimate differs from the stored one, or the engine needs more than a library and HIGHER has no reason
    table.py try NAME  one saver, on the screen
"""

import datetime
import json
import os
import pathlib
import sys
import tempfile

from savers import BASE, CARD, CARDS, HIGHER, LOOP, MODEL, OFFLOADED, SAVERS, SEQUENCE, SMALL

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from figures import keep, last_object, run, write_between  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", ROOT / "build" / "release" / "bin"))
DATA = ROOT / "configs" / "published" / "savers.json"
PAGE = ROOT / "docs" / "savers.md"
BEGIN, END = "<!-- written by scripts/savers -->", "<!-- end -->"
GIB = 2**30
ALL = [*SAVERS, *OFFLOADED]
TABLES = [*((MODEL, cards) for cards in CARDS), (SMALL, 1)]
ABOUT = ("Memory savers on Llama-3.1-8B, and on Llama-3.2-1B where host memory updates it: predicted for vramfit's engine, and rehearsed on phantom GPUs with the libraries that people use; nothing was "
         "measured on a card. Bytes of the caching allocator, rank 0, over the first three steps.")


def words(fields):
    return [str(word) for name, value in fields.items() for word in ("--" + name, value)]


def estimate(model, cards, flags):
    return json.loads(run([PROGRAMS / "vramfit", "estimate", model, "--gpus", f"{cards}x{CARD}", "--json", *flags]))


def figures(answer):
    rank = answer["ranks"][answer["worst"]]
    return {"allocated": rank["peak_allocated_bytes"], "reserved": rank["peak_reserved_bytes"], "managed": rank.get("managed_bytes", 0), "host": answer["host_bytes"],
            "step_seconds": round(answer["speed"]["step_seconds"], 4)}


def engine(saver, cards):
    answer = estimate(saver.model, cards, ["--stack", "vramfit", *words({**BASE, **saver.flags}), *([] if saver.clips else ["--no-clip"])])
    if answer["verdict"] == "not_modelled":
        raise SystemExit(f"{saver.name}: not modelled: {answer['why']}")
    return figures(answer)


def stack(library, saver, cards):
    """What vramfit's rules for the library's stack say of the same job; nothing where it has none, or where the library fails."""
    if library.stack is None or cards in library.fails_on:
        return {}
    flags = words({**LOOP, **library.stack})
    answer = estimate(saver.model, cards, flags)
    return {} if answer["verdict"] == "not_modelled" else {"stack": {"flags": flags, **figures(answer)}}


def rehearse(library, model, cards):
    """Rank 0 of the library's run; with weights of no value where it quantizes what it reads."""
    with tempfile.TemporaryDirectory() as folder:
        run([PROGRAMS / "vramfit", "fake-weights", model, folder, "--dtype", "bf16"])
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", cards] if cards > 1 or "--offload-params" in library.options else []
        out = run([PROGRAMS / "vramfit", "rehearse", "--gpus", f"{cards}x{CARD}", "--ranks", "0", "--", sys.executable, *launcher, FOLDER / "library.py",
                   pathlib.Path(folder, "config.json"), "--sequence", SEQUENCE, *library.options], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, timeout=900)
    done = last_object(out)
    if ("failed" in done) != (cards in library.fails_on):
        raise SystemExit(f"{library.name} on {cards} cards, which was to {'fail' if cards in library.fails_on else 'run'}: {done}")
    return done


def rehearsed(library, model, cards, known):
    """What is known of it, if it was asked for the same, or a rehearsal."""
    asked = {"name": library.name, "options": list(library.options)}
    for one in known:
        if {name: one[name] for name in asked} == asked and ("failed" in one) == (cards in library.fails_on):
            return {name: value for name, value in one.items() if name != "stack"}
    return {**asked, **rehearse(library, model, cards)}


def read(saver, cards, known):
    libraries = [{**rehearsed(library, saver.model, cards, known), **stack(library, saver, cards)} for library in saver.libraries if cards in library.cards]
    row = {"model": saver.model, "saver": saver.name, "cards": cards, "flags": saver.flags, "clips": saver.clips, "vramfit": engine(saver, cards), "libraries": libraries}
    print(*cells(row, row), sep=" | ", flush=True)
    return row


def places(savers):
    """Each saver on each number of cards, in the order of the page."""
    return [(saver, cards) for model, cards in TABLES for saver in savers if saver.model == model and cards in saver.cards]


def place_of(row):
    return row["model"], row["saver"], row["cards"]


def measure(known):
    """All rows. What is known of libraries stays in the file until its row is there, so that a run that is stopped loses nothing."""
    import torch
    libraries = {place_of(row): row["libraries"] for row in known}
    rows = {place_of(row): row for row in known}
    kept = {"about": ABOUT, "kind": "rehearsed and predicted", "torch": torch.__version__, "date": datetime.date.today().isoformat()}
    for saver, cards in places(ALL):
        place = saver.model, saver.name, cards
        rows[place] = read(saver, cards, libraries.get(place, []))
        keep(DATA, {**kept, "rows": list(rows.values())})
    kept["rows"] = [rows[saver.model, saver.name, cards] for saver, cards in places(ALL)]
    keep(DATA, kept)
    return kept


def gib(count):
    return f"{count / GIB:.2f}"


def signed(count):
    return f"{count / GIB:+.2f}" if count else ""


def shown(library):
    return f"{library['name']}: " + ("fails" if "failed" in library else f"{gib(library['allocated'])} / {gib(library['reserved'])}")


def cells(row, none):
    """`none` is the row of the same number of cards without a saver."""
    ours, before = row["vramfit"], none["vramfit"]
    flags = " ".join(words(row["flags"]))
    slower = ours["step_seconds"] / before["step_seconds"] - 1
    theirs = [f"{one['stack']['step_seconds']:.3f}" for one in row["libraries"] if "stack" in one]
    return (row["saver"] + (f" (`{flags}`)" if flags else ""), f"{gib(ours['allocated'])} / {gib(ours['reserved'])}", signed(ours["reserved"] - before["reserved"]),
            gib(ours["host"]), gib(ours["managed"]) if ours["managed"] else "", f"{ours['step_seconds']:.3f}", f"{100 * slower:+.0f} %" if row is not none else "",
            "; ".join(map(shown, row["libraries"])), "; ".join(theirs))


def table(rows):
    yield "| saver | vramfit, predicted | change of reserved | host | managed | step, s | change | libraries, rehearsed | their step, s, predicted by vramfit |"
    yield "|-|-|-|-|-|-|-|-|-|"
    for row in rows:
        yield "| " + " | ".join(cells(row, rows[0])) + " |"


def on(cards):
    return f"{cards} card{'s' if cards > 1 else ''}"


def title(model, cards):
    """The first tables are of one model, which the page names above them."""
    return on(cards) if model == MODEL else f"{on(cards)}, {model.split('/')[-1]}"


def compared(rows):
    """Each library that ran, beside the engine."""
    return [(row, library) for row in rows for library in row["libraries"] if "failed" not in library]


def higher(rows):
    """Where the engine needs more than a library: the place, and a line that says how much."""
    for row, library in compared(rows):
        for figure in ("allocated", "reserved"):
            if row["vramfit"][figure] > library[figure]:
                yield ((*place_of(row), figure),
                       f"{row['saver']}, {title(row['model'], row['cards'])}: {figure} {gib(row['vramfit'][figure])}, with {library['name']} {gib(library[figure])}")


def failed(rows):
    """What each library said that failed, and where."""
    said = {}
    for row in rows:
        for library in row["libraries"]:
            if "failed" in library:
                said.setdefault((row["saver"], library["name"], library["failed"]), []).append(str(row["cards"]))
    for (saver, name, error), cards in said.items():
        yield f"- {saver}, {name}, {' and '.join(cards)} cards: `{error}`"


def alike(rows):
    """How near estimates of libraries come to the rehearsals, on one card."""
    estimated = [library for row, library in compared(rows) if "stack" in library and row["cards"] == 1]
    same = [library for library in estimated if library["stack"]["reserved"] == library["reserved"]]
    apart = max(abs(library["stack"]["allocated"] - library["allocated"]) for library in same)
    return (f"Of {len(estimated)} libraries on one card whose step is predicted, {len(same)} reserve at their peak what is predicted, to the byte; "
            f"of what they allocate the prediction is at most {apart / 2**20:.2f} MiB off.")


def render(kept):
    rows = kept["rows"]
    text = ["", f"torch {kept['torch']} and its libraries on {CARD} (phantom), {kept['date']}. GiB, allocated / reserved.", ""]
    for model, cards in TABLES:
        text += [f"### {title(model, cards)}", "", *table([row for row in rows if (row["model"], row["cards"]) == (model, cards)]), ""]
    above = [f"- {line}: {HIGHER.get(place, 'nobody knows why')}" for place, line in higher(rows)]
    count = len(compared(rows))
    text += [f"Of {2 * count} figures of {count} comparisons with a library, the engine's is higher in {len(above) or 'none'}" + (":" if above else "."), "", *above, *([""] if above else [])]
    text += [alike(rows), "", "What libraries said that fail:", "", *failed(rows), ""]
    write_between(PAGE, BEGIN, END, text)


def differs(now, kept):
    """Bytes at all, seconds by more than 1 %."""
    return any(now[figure] != kept[figure] for figure in ("allocated", "reserved", "managed", "host")) or abs(now["step_seconds"] / kept["step_seconds"] - 1) > 0.01


def changed(row, saver):
    """What is estimated today and differs from what the page says."""
    now = engine(saver, row["cards"])
    if row["flags"] != saver.flags or differs(now, row["vramfit"]):
        yield f"{saver.name} on {on(row['cards'])}: {now}, the page says {row['vramfit']}"
    asked = [library for library in saver.libraries if row["cards"] in library.cards]
    if [library.name for library in asked] != [one["name"] for one in row["libraries"]]:
        yield f"{saver.name} on {on(row['cards'])}: libraries changed; table.py go-on"
        return
    for library, one in zip(asked, row["libraries"]):
        today = stack(library, saver, row["cards"]).get("stack")
        if (today is None) != ("stack" not in one) or (today and (today["flags"] != one["stack"]["flags"] or differs(today, one["stack"]))):
            yield f"{saver.name} on {on(row['cards'])}, {library.name}: {today}, the page says {one.get('stack')}"


def failures(kept):
    rows = {place_of(row): row for row in kept["rows"]}
    for saver, cards in places(ALL):
        place = saver.model, saver.name, cards
        if place in rows:
            yield from changed(rows[place], saver)
        else:
            yield f"{saver.name}, {title(saver.model, cards)}: missing; table.py go-on"
    above = dict(higher(kept["rows"]))
    yield from (f"{line}: HIGHER has no reason" for place, line in above.items() if place not in HIGHER)
    yield from (f"{place}: not higher any more, but in HIGHER" for place in HIGHER if place not in above)


def main(mode, *names):
    if mode == "try":
        for saver, cards in places([saver for saver in ALL if saver.name in names]):
            read(saver, cards, [])
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
