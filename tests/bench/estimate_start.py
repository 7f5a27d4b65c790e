"""How long `vramfit estimate` of a catalog model takes as a whole process, next to its goal: processor time for this project's engine, and
elapsed time for PyTorch's stacks, whose estimates use all cores. Figures, not a test: it fails only if the command does.

With --instructions it prints how many instructions each takes instead (valgrind's callgrind counts them): a figure that other processes don't
change, so that two builds can be compared on a busy machine."""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

RUNS, FEW_RUNS = 40, 5
LLAMA_8B = ["estimate", "meta-llama/Llama-3.1-8B", "--gpus"]
LLAMA_405B = ["estimate", "meta-llama/Llama-3.1-405B", "--gpus", "64x8xH100-80GB"]
# Milliseconds, and the command.
GOALS = [
    (20, [*LLAMA_8B, "8xH100-80GB", "--stack", "vramfit"]),
    (20, ["estimate", "HuggingFaceTB/SmolLM2-135M", "--gpus", "2xcpu-4GiB"]),
    (25, [*LLAMA_405B, "--stack", "vramfit", "--grad-accum", "64", "--checkpointing", "full"]),
]
ELAPSED_GOALS = [
    (60, [*LLAMA_8B, "1xH100-80GB"]),  # does not fit: everything is suggested
    (60, [*LLAMA_8B, "8xH100-80GB"]),
    (60, [*LLAMA_8B, "1xH100-80GB", "--stack", "trl", "--method", "qlora"]),
    *((60, [*LLAMA_8B, "8xH100-80GB", "--stack", stack]) for stack in ("deepspeed", "torchtune", "torchtitan")),
    # Of a step with more than one micro-batch, the first, another and the last are walked through.
    *(
        (60, [*LLAMA_8B, "8xH100-80GB", "--stack", stack, "--grad-accum", "16"])
        for stack in ("transformers", "trl", "deepspeed", "torchtune")
    ),
    (60, [*LLAMA_8B, "1xH100-80GB", "--stack", "transformers", "--method", "lora", "--grad-accum", "16"]),
    (300, LLAMA_405B),
    *((300, [*LLAMA_405B, "--stack", stack]) for stack in ("deepspeed", "torchtune", "torchtitan", "trl")),
]


def run(command, **options):
    """What the command says on stderr, and what it took: seconds of processors."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options) as process:
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}: exit {process.returncode}: {said}")
    return said, used.ru_utime + used.ru_stime


def milliseconds(command):
    """Of processors, and elapsed."""
    began = time.monotonic()
    _, used = run(command)
    return 1000 * used, 1000 * (time.monotonic() - began)


def program():
    return str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit"))


def measure(command, runs):
    return [sorted(times) for times in zip(*(milliseconds([program(), *command]) for _ in range(runs)), strict=True)]


def millions_of_instructions(command):
    said, _ = run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", program(), *command])
    return int(re.search(r"Collected : (\d+)", said)[1]) / 1e6


def main():
    if "--instructions" in sys.argv[1:]:
        for _, command in [*GOALS, *ELAPSED_GOALS]:
            print(f"vramfit {' '.join(command)}: {millions_of_instructions(command):.0f} million instructions", flush=True)
        return
    for goal, command in GOALS:
        times, _ = measure(command, RUNS)
        print(f"vramfit {' '.join(command)}: best {times[0]:.1f} ms, median {statistics.median(times):.1f} ms, goal {goal} ms")
    for goal, command in ELAPSED_GOALS:
        processors, elapsed = measure(command, FEW_RUNS)
        print(f"vramfit {' '.join(command)}: best {elapsed[0]:.0f} ms elapsed, {processors[0]:.0f} ms of processors, goal {goal} ms elapsed")


if __name__ == "__main__":
    main()
