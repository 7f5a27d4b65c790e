"""How long `vramfit estimate` of a catalog model takes as a whole process, next to its goal: processor time for this project's engine, and
elapsed time for PyTorch's stacks, whose estimates use all cores. Figures, not a test: it fails only if the command does."""
import os
import pathlib
import statistics
import subprocess
import sys
import time

RUNS, FEW_RUNS = 40, 5
LLAMA_8B = ["estimate", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB"]
LLAMA_405B = ["estimate", "meta-llama/Llama-3.1-405B", "--gpus", "64x8xH100-80GB"]
# Milliseconds, and the command.
GOALS = [
    (20, [*LLAMA_8B, "--stack", "vramfit"]),
    (20, ["estimate", "HuggingFaceTB/SmolLM2-135M", "--gpus", "2xcpu-4GiB"]),
    (25, [*LLAMA_405B, "--stack", "vramfit", "--grad-accum", "64", "--checkpointing", "full"]),
]
ELAPSED_GOALS = [
    (60, [*LLAMA_8B, "--stack", "transformers"]),
    (60, [*LLAMA_8B, "--stack", "torchtitan"]),
    (300, [*LLAMA_405B, "--stack", "transformers"]),
]


def milliseconds(command):
    """Of processors, and elapsed."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        elapsed = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit {process.returncode}: {said}")
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * elapsed


def measure(command, runs):
    program = str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit"))
    return [sorted(times) for times in zip(*(milliseconds([program, *command]) for _ in range(runs)), strict=True)]


def main():
    for goal, command in GOALS:
        times, _ = measure(command, RUNS)
        print(f"vramfit {' '.join(command)}: best {times[0]:.1f} ms, median {statistics.median(times):.1f} ms, goal {goal} ms")
    for goal, command in ELAPSED_GOALS:
        processors, elapsed = measure(command, FEW_RUNS)
        print(f"vramfit {' '.join(command)}: best {elapsed[0]:.0f} ms elapsed, {processors[0]:.0f} ms of processors, goal {goal} ms elapsed")


if __name__ == "__main__":
    main()
