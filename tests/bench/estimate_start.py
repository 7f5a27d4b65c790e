"""How long `vramfit estimate` of a catalog model takes as a whole process, next to the goal of 20 ms. A figure, not a test: it
fails only if the command does."""
import os
import pathlib
import statistics
import subprocess
import sys
import time

GOAL_MS = 20.0
RUNS = 100
COMMANDS = [
    ["estimate", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB"],
    ["estimate", "HuggingFaceTB/SmolLM2-135M", "--gpus", "2xcpu-4GiB"],
]


def milliseconds(command):
    begun = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr}")
    return 1000 * (time.perf_counter() - begun)


def main():
    program = str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit"))
    for command in COMMANDS:
        times = sorted(milliseconds([program, *command]) for _ in range(RUNS))
        print(f"vramfit {' '.join(command)}: best {times[0]:.1f} ms, median {statistics.median(times):.1f} ms, goal {GOAL_MS:g} ms")


if __name__ == "__main__":
    main()
