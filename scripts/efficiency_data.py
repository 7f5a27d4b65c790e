"""Measurements of kernels, and files of figures that are fitted to them, for scripts/fit-efficiency."""
import json
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARDS = {card["name"]: card for card in json.loads((ROOT / "configs/gpus.json").read_text())["cards"]}
PUBLISHED = json.loads((ROOT / "configs/published/kernels.json").read_text())
# The card of configs/published/h200.json, and what its measurements are called among others.
OWN_KINDS = ("attention", "eager_cast")
OWN_CARD, OWN_SOURCE = "H200-141GB", "one H200 (configs/published/h200.json)"


def own_rows():
    """What one H200 measured, in the form of published measurements."""
    measured = json.loads((ROOT / "configs/published/h200.json").read_text())["kernels"]
    for number, row in enumerate(measured):
        if row["kind"] in OWN_KINDS and row.get("kernel") != "FlashAttention-2":
            yield {**row, "id": f"own-{number:03}", "card": OWN_CARD, "source": "own"}


SOURCES = {**PUBLISHED["sources"], "own": OWN_SOURCE}
ROWS = PUBLISHED["rows"] + list(own_rows())


def peak(card, field):
    value = CARDS[card][field]
    return value[0] if isinstance(value, list) else value


def capability(card):
    major, minor = CARDS[card]["compute_capability"].split(".")
    return 10 * int(major) + int(minor)


def family(card):
    """The file whose figures a card has where it has none of its own."""
    for name, start in FAMILIES:
        if capability(card) >= start:
            return name
    return "gpu"


FAMILIES = [("capability-12", 120), ("capability-10", 100), ("capability-9", 90), ("capability-8", 80)]


def rows(kind, **wanted):
    found = [row for row in ROWS if row["kind"] == kind and all(row.get(k) in v for k, v in wanted.items())]
    return sorted(found, key=lambda row: row["id"])


def used_and_held_out(found):
    """Alternating. Fewer than six are all used."""
    return (found[0::2], found[1::2]) if len(found) >= 6 else (found, [])


def error_of(predicted, measured):
    return abs(predicted / measured - 1)


class File:
    """Figures with their origins, and what fits say of the measurements that they were not made from."""

    def __init__(self, name, inherits=None):
        self.name, self.inherits, self.figures, self.fits = name, inherits, {}, {}

    def put(self, key, value, origin):
        self.figures[key] = [round(value, 4) if value >= 1e-3 else float(f"{value:.3g}") if value else 0, origin]

    def put_origin(self, key, value, used):
        """A figure fitted to `used`."""
        names = sorted({SOURCES[row["source"]] for row in used})
        kind = "measurements" if OWN_SOURCE in names else "published measurements"
        self.put(key, value, f"fitted to {len(used)} {kind}: {', '.join(short(names))}")

    def put_fit(self, keys, values, used, held_out, predict, measured):
        """`predict(row, values)` and `measured(row)` are in the same unit."""
        for key, value in zip(keys, values):
            self.put_origin(key, value, used)
        if not held_out:
            return
        errors = sorted(error_of(predict(row, values), measured(row)) for row in held_out)
        ratio = statistics.median(predict(row, values) / measured(row) for row in held_out)
        self.fits[" ".join(keys)] = {
            "held_out": len(errors), "median_error": round(statistics.median(errors), 3),
            "largest_error": round(errors[-1], 3), "median_of_predicted_to_measured": round(ratio, 3)}

    def text(self):
        parts = [f'  "name": {json.dumps(self.name)}']
        if self.inherits:
            parts.append(f'  "inherits": {json.dumps(self.inherits)}')
        figures = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in self.figures.items())
        parts.append('  "figures": {\n' + figures + "\n  }")
        if self.fits:
            fits = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in self.fits.items())
            parts.append('  "errors_on_held_out_measurements": {\n' + fits + "\n  }")
        return "{\n" + ",\n".join(parts) + "\n}\n"


def short(names):
    """Repositories and threads, without the paths of files; of long lists the first few."""
    cut = sorted({re.sub(r"^https://github.com/", "", name).split(":")[0] for name in names})
    cut = sorted({re.sub(r"/issues/\d+$", " issues", name) if len(cut) > 4 else name for name in cut})
    return cut if len(cut) <= 4 else cut[:4] + [f"and {len(cut) - 4} more"]
