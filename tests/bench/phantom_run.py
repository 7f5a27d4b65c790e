"""How long `vramfit run --device phantom` takes as a whole command, and how much host memory all its processes hold together
(proportional set size: shared pages counted once), next to the goals. Figures, not a test: it fails only if a command does, or if
prediction and rehearsal differ in a peak."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

JOB = ["--seq-len", "8192", "--checkpointing", "full", "--device", "phantom", "--steps", "2"]
COMMANDS = [  # arguments, goal in seconds
    (["meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--ranks", "0"], 10),
    (["meta-llama/Llama-3.1-405B", "--gpus", "64x8xH100-80GB", "--ranks", "0"], 60),
    (["meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--ranks", "all"], 40),
]
GOAL_GIB = 4.0


def proportional_bytes(process):
    """Of the process and all that it started."""
    total, waiting = 0, [process]
    while waiting:
        one = waiting.pop()
        try:
            rollup = pathlib.Path(f"/proc/{one}/smaps_rollup").read_text(encoding="ascii")
            total += 1024 * int(re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE).group(1))
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text(encoding="ascii").split()]
        except (OSError, AttributeError):
            continue  # it has ended meanwhile
    return total


def measure(program, arguments):
    begun, peak = time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen([program, "run", *arguments, *JOB], stdout=output, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                peak = max(peak, proportional_bytes(process.pid))
                time.sleep(0.1)
            errors = process.stderr.read()
        seconds = time.perf_counter() - begun
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit {process.returncode}: {errors}")
    for name in ("requested", "allocated", "reserved"):
        predicted, rehearsed = re.search(rf"^  {name}\s+(\S+)\s+(\S+)", text, re.MULTILINE).groups()
        if predicted != rehearsed:
            sys.exit(f"{' '.join(arguments)}: {name}: predicted {predicted} MiB, rehearsed {rehearsed} MiB")
    return seconds, peak / 2**30


def main():
    program = str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit"))
    for arguments, goal in COMMANDS:
        seconds, gib = measure(program, arguments)
        print(f"vramfit run {' '.join(arguments)}: {seconds:.1f} s (goal {goal}), {gib:.2f} GiB of all processes (goal {GOAL_GIB:g})")


if __name__ == "__main__":
    main()
