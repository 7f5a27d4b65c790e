"""How much processor time `vramfit estimate` of a catalog model takes as a whole process, next to its goal. Figures, not a test: it
fails only if the command does."""
import os
import pathlib
import statistics
import subprocess
import sys

RUNS = 40
# Milliseconds, and the command.
GOALS = [
    (20, ["estimate", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--stack", "vramfit"]),
    (20, ["estimate", "HuggingFaceTB/SmolLM2-135M", "--gpus", "2xcpu-4GiB"]),
    (25, ["estimate", "meta-llama/Llama-3.1-405B", "--gpus", "64x8xH100-80GB", "--stack", "vramfit", "--grad-accum", "64", "--checkpointing", "full"]),
]


def milliseconds(command):
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit {process.returncode}: {said}")
    return 1000 * (used.ru_utime + used.ru_stime)


def main():
    program = str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit"))
    for goal, command in GOALS:
        times = sorted(milliseconds([program, *command]) for _ in range(RUNS))
        print(f"vramfit {' '.join(command)}: best {times[0]:.1f} ms, median {statistics.median(times):.1f} ms, goal {goal} ms")


if __name__ == "__main__":
    main()
