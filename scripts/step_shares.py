"""How much slower kernels are in a step of training than alone, from published steps (configs/published/steps.json).

A step takes compute / share + the rest. Solved for the share, row by row, it is the middle of the sources' middles: of
the card if three sources and more have it, or else of the cards of its compute capability's first digit, or of all.
"""
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARDS = {card["name"]: card for card in json.loads((ROOT / "configs/gpus.json").read_text())["cards"]}
LEAST_SOURCES = 3


def source_of(row):
    origin = row["origin"]
    return f"{origin['repo']}@{origin['ref']}, {origin['path_or_thread']}"


def share_of_step(step):
    rest = step["alone_seconds"] - step["alone_compute_seconds"]
    return step["alone_compute_seconds"] / max(step["published_seconds"] - rest, 1e-9)


def middle(steps):
    by_source = {}
    for step in steps:
        by_source.setdefault(step["source"], []).append(share_of_step(step))
    return statistics.median(statistics.median(shares) for shares in by_source.values()), len(by_source)


def is_plain(step):
    """FP8 products have a share of their own."""
    return not step["stack"].startswith("fp8")


def generation(card):
    return CARDS[card]["compute_capability"].split(".")[0]


def share_of_all(steps, name):
    """The share, and the words that say where it is from."""
    share, sources = middle(steps)
    return share, f"{len(steps)} steps of {sources} source{'' if sources == 1 else 's'} on {name}"


def share_of(card, steps):
    steps = [step for step in steps if is_plain(step)]
    own = [step for step in steps if step["card"] == card]
    alike = [step for step in steps if generation(step["card"]) == generation(card)]
    if len({step["source"] for step in own}) >= LEAST_SOURCES:
        return share_of_all(own, card)
    if len(alike) >= 2:
        return share_of_all(alike, f"compute capability {generation(card)}.x")
    return share_of_all(steps, "all cards")
