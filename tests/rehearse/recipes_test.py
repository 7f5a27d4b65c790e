"""Recipes of `rehearse --recipe` with their real libraries: each ends well, equal to the byte in all repeats, and holds what a hand count says.

Usage: recipes_test.py RECIPE REPEATS
Libraries are those of $VRAMFIT_RECIPES_PYTHON, an environment with requirements-recipes.txt (of torchtune, $VRAMFIT_TORCHTUNE_PYTHON and
requirements-torchtune.txt); without it, of the Python that runs this, and a recipe whose libraries that hasn't is skipped (exit code 77).
"""
import json
import os
import subprocess
import sys
import tempfile

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes", "alloc_retries")
SKIPPED = 77
MODEL = "HuggingFaceTB/SmolLM2-135M"

# By hand, from the model's shapes: 30 layers of 576, of 3 key and value heads of 64, a feed-forward of 1536, and a tied vocabulary of 49152.
LAYERS, HIDDEN, KEY_VALUE, FEED_FORWARD, VOCABULARY = 30, 576, 192, 1536, 49152
LINEAR = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEY_VALUE + 3 * HIDDEN * FEED_FORWARD)
OTHER = VOCABULARY * HIDDEN + (2 * LAYERS + 1) * HIDDEN
PARAMETERS = LINEAR + OTHER
ADAPTERS = 16 * LAYERS * (4 * HIDDEN + 2 * (HIDDEN + KEY_VALUE) + 3 * (HIDDEN + FEED_FORWARD))
WORKSPACES = 2 * (32 << 20)  # cuBLAS's, of forward's thread and of backward's
ADAM = 16  # an fp32 weight, its gradient and two moments
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # two values a byte, a byte for each 64, an fp32 number for each 256 of those

# recipe: (GPUs, what is held while the optimizer runs, the phase that shows it)
CASES = {
    "trainer": (1, ADAM * PARAMETERS, "optimizer"),
    "trl-sft": (1, ADAM * PARAMETERS, "optimizer"),
    "trl-dpo": (1, (ADAM + 4) * PARAMETERS, "optimizer"),  # with a reference model
    "trl-reward": (1, ADAM * PARAMETERS, "optimizer"),
    "trl-grpo": (1, ADAM * PARAMETERS, "optimizer"),
    "peft-lora": (1, 2 * PARAMETERS + ADAM * ADAPTERS, "optimizer"),
    # Preparation makes fp32 of what is not quantized. Adapters are too small for paged states: each has two bytes a value, and two scales for each 256.
    "peft-qlora": (1, NF4 * LINEAR + 4 * OTHER + (8 + 2 + 2 * 4 / 256) * ADAPTERS, "optimizer"),
    "accelerate-ddp": (1, ADAM * PARAMETERS + 4 * PARAMETERS, "optimizer"),  # a square root of each second moment, all at once
    "accelerate-fsdp2": (4, ADAM * PARAMETERS / 4, "other"),
    # Beside the fp32 weights and moments: bf16 weights, bf16 gradients and fp32 copies of them, and a bucket of 5e8 bf16 gradients.
    "deepspeed-zero3": (4, (4 + 8 + 2 + 2 + 4) * PARAMETERS / 4 + 2 * 5e8, "optimizer"),
    "trl-deepspeed": (4, (4 + 8 + 2 + 2 + 4) * PARAMETERS / 4 + 2 * 5e8, "optimizer"),
    "trl-dpo-deepspeed": (4, (4 + 8 + 2 + 2 + 4 + 2) * PARAMETERS / 4 + 2 * 5e8, "optimizer"),  # with a reference model in bf16
    "trl-reward-deepspeed": (4, (4 + 8 + 2 + 2 + 4) * PARAMETERS / 4 + 2 * 5e8, "optimizer"),
    "trl-grpo-deepspeed": (4, (4 + 8 + 2 + 2 + 4) * PARAMETERS / 4 + 2 * 5e8, "optimizer"),
    "torchtune": (4, ADAM / 2 * PARAMETERS / 4, "other"),  # all of them in bf16
    "lightning": (4, ADAM * PARAMETERS / 4 + 4 * PARAMETERS / 4, "optimizer"),  # AdamW of a loop has temporaries of a parameter's size
}
TOLERANCE = 0.02
STACKS = {"trainer": "transformers", "accelerate-ddp": "accelerate", "accelerate-fsdp2": "accelerate", "trl-deepspeed": "trl-deepspeed"}  # that have rules


def rehearse(recipe, cards, folder):
    report = os.path.join(folder, "report.json")
    setting = "VRAMFIT_TORCHTUNE_PYTHON" if recipe == "torchtune" else "VRAMFIT_RECIPES_PYTHON"
    python = os.environ.get(setting, sys.executable)
    alone = ["--ranks", "0"] if cards > 1 else []
    done = subprocess.run([VRAMFIT, "rehearse", "--recipe", recipe, MODEL, "--gpus", f"{cards}xH100-80GB", *alone, "--python", python, "-o", report],
                          text=True, capture_output=True, timeout=900, check=False)
    if "install with: " in done.stderr and setting not in os.environ:
        print(f"skipped: {done.stderr}")
        sys.exit(SKIPPED)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def compare_estimate(rank, stack, cards):
    """The recipe is what --stack estimates. Loading, which is another there, decides what blocks are left."""
    done = subprocess.run([VRAMFIT, "estimate", MODEL, "--gpus", f"{cards}xH100-80GB", "--seq-len", "1024", "--stack", stack, "--json"], text=True, capture_output=True, check=True)
    counted = json.loads(done.stdout)["ranks"][0]
    assert abs(counted["peak_requested_bytes"] - rank["peak_requested_bytes"]) <= 8, (counted["peak_requested_bytes"], rank["peak_requested_bytes"])  # a number
    assert abs(counted["total_bytes"] / rank["total_bytes"] - 1) < 0.005, (counted["total_bytes"], rank["total_bytes"])


def main():
    recipe, repeats = sys.argv[1], int(sys.argv[2])
    cards, states, phase = CASES[recipe]
    with tempfile.TemporaryDirectory() as folder:
        reports = [rehearse(recipe, cards, folder) for _ in range(repeats)]
    rank = reports[0]["ranks"][0]
    for report in reports[1:]:
        assert [report["ranks"][0][name] for name in PEAKS] == [rank[name] for name in PEAKS], (report["ranks"][0], rank)
        assert report["ranks"][0]["phases"] == rank["phases"], (report["ranks"][0]["phases"], rank["phases"])
    assert reports[0]["verdict"] in ("fits", "at_risk"), reports[0]["why"]
    held = next(entry["peak_requested_bytes"] for entry in rank["phases"] if (entry["phase"], entry["step"]) == (phase, "steady"))
    assert abs(held / (states + WORKSPACES) - 1) < TOLERANCE, (held, states + WORKSPACES)
    if recipe in STACKS:
        compare_estimate(rank, STACKS[recipe], cards)
    print(f"{recipe}: {[rank[name] for name in PEAKS]}, held {held} of {states + WORKSPACES:.0f} by hand; {reports[0]['seconds']} s")


if __name__ == "__main__":
    main()
