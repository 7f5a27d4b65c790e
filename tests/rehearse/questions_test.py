"""Llama-3.2-1B with 4096 tokens under the Trainer on an RTX 4090, as docs/questions.md has it: estimated within 0.5 % of a rehearsal.

On a card without its limit, since it does not fit; the rehearsal on the card itself runs out of memory.
"""
import json
import os
import subprocess
import sys

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
MODEL, LENGTH = "meta-llama/Llama-3.2-1B", "4096"


def answer(*words):
    done = subprocess.run([VRAMFIT, *words, "--seq-len", LENGTH, "--json"], text=True, capture_output=True, timeout=400, check=False)
    return done.returncode, json.loads(done.stdout)


def worst_total(document):
    return document["ranks"][document["worst"]]["total_bytes"]


def main():
    without_limit, on_card = "1xRTX4090@40GiB", "1xRTX4090"
    rehearse = ("rehearse", "--recipe", "trainer", MODEL, "--python", sys.executable, "--gpus")
    estimate = ("estimate", MODEL, "--stack", "transformers", "--gpus")
    _, rehearsed = answer(*rehearse, without_limit)
    _, estimated = answer(*estimate, without_limit)
    ratio = worst_total(estimated) / worst_total(rehearsed)
    print(f"estimated {worst_total(estimated)}, rehearsed {worst_total(rehearsed)}: {100 * (ratio - 1):+.3f} %")
    assert rehearsed["verdict"] in ("fits", "at_risk"), rehearsed["why"]
    assert abs(ratio - 1) < 0.005, ratio
    assert worst_total(estimated) > answer(*estimate, on_card)[1]["capacity_bytes"]
    assert answer(*estimate, on_card)[0] == 3
    assert answer(*rehearse, on_card)[1]["verdict"] == "does_not_fit"


if __name__ == "__main__":
    main()
