"""Typical programs of other people are rehearsed several times: each finishes, and its peaks are equal to the byte.

Usage: scripts_test.py CASE REPEATS    (cases: see CASES)
"""
import json
import os
import subprocess
import sys
import tempfile

from hand_counts import RESIDENT_BYTES

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes", "alloc_retries")

# name: (phantom cards, ranks that the launcher starts (0: none), script and its arguments)
CASES = {
    "trainer": (1, 0, ["trainer.py"]),
    "trainer-checkpointing": (1, 0, ["trainer.py", "checkpointing"]),
    "trainer-fsdp2": (4, 4, ["trainer.py", "checkpointing"]),
    "lora": (1, 0, ["adapters.py", "lora"]),
    "qlora": (1, 0, ["adapters.py", "qlora"]),
    "adamw-8bit": (1, 0, ["low_memory_optimizers.py", "8bit"]),
    "cpu-offload-optimizer": (1, 0, ["low_memory_optimizers.py", "offload"]),
    "compiled-step": (1, 0, ["compiled_step.py"]),
    "data-parallel": (2, 2, ["data_parallel.py"]),
    "fully-shard": (4, 4, ["fully_shard.py"]),
}


def command_of(case):
    cards, ranks, script = CASES[case]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return cards, [sys.executable, *launcher, os.path.join(FOLDER, script[0]), *script[1:]]


def rehearse(arguments, command, environment=None):
    """The JSON object of one rehearsal, which must end well, and what the program printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        # Compiled kernels are kept apart, so that each repetition compiles its own.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, **(environment or {})}
        done = subprocess.run([VRAMFIT, "rehearse", "-o", report, *arguments, "--", *command], env=environment, text=True,
                              capture_output=True, timeout=500)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        with open(report, encoding="utf-8") as file:
            return json.load(file), done.stdout


def peaks_of(report):
    """By rank: its peaks over all and of each phase."""
    return {rank: ([entry[name] for name in PEAKS], entry["phases"])
            for entry in report["ranks"] for rank in range(entry["ranks"][0], entry["ranks"][1] + 1)}


def main():
    (cards, command), repeats = command_of(sys.argv[1]), int(sys.argv[2])
    reports, printed = zip(*(rehearse(["--gpus", f"{cards}xH100-80GB"], command) for _ in range(repeats)))
    assert len(reports) > 1, repeats
    first = peaks_of(reports[0])
    assert reports[0]["schema"] == "vramfit/rehearsal@1", reports[0]["schema"]
    assert sorted(first) == list(range(cards)), first
    for (requested, allocated, reserved, total, _), _ in first.values():
        assert 0 < requested <= allocated <= reserved < total, first
    for number, report in enumerate(reports[1:], 2):
        if peaks_of(report) != first:
            sys.exit(f"rehearsal {number} differs from the first:\n{json.dumps(first)}\n{json.dumps(peaks_of(report))}")
    if sys.argv[1] in RESIDENT_BYTES:
        assert f"resident {RESIDENT_BYTES[sys.argv[1]]}\n" in printed[0], (RESIDENT_BYTES[sys.argv[1]], printed[0])
    escapes = [escape for process in reports[0]["processes"] for escape in process["escapes"]]
    assert not escapes, escapes
    print(f"{sys.argv[1]}: {first[0][0]} in {repeats} rehearsals; {reports[0]['values']}")


if __name__ == "__main__":
    main()
