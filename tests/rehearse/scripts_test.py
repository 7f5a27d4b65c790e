"""Typical programs of other people are rehearsed: each finishes, and its peaks are those in script_peaks.json, to the byte, however often.

Usage: scripts_test.py CASE REPEATS    (cases: see CASES; `record` instead of a number writes what is rehearsed into script_peaks.json)
`alone` instead of CASE and REPEATS stands for those that no launcher starts and nothing is compiled for, once: forks of one process that has imported the libraries,
which takes longer than they do.
"""
import json
import os
import sys
import tempfile

from hand_counts import RESIDENT_BYTES
from warm_programs import WarmPrograms, started

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "scripts")
RECORDED = os.path.join(HERE, "script_peaks.json")
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes", "alloc_retries")
COLUMNS = PEAKS[:3]

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
ALONE = [case for case, (cards, _, _) in CASES.items() if cards == 1 and case != "compiled-step"]


def command_of(case):
    cards, ranks, script = CASES[case]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    return cards, [sys.executable, *launcher, os.path.join(FOLDER, script[0]), *script[1:]]


def rehearse(arguments, command, environment=None, start=started):
    """The JSON object of one rehearsal, which must end well, and what the program printed."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        # Compiled kernels are kept apart, so that each repetition compiles its own.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, **(environment or {})}
        done = start([VRAMFIT, "rehearse", "-o", report, *arguments, "--", *command], env=environment, timeout=500)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        with open(report, encoding="utf-8") as file:
            return json.load(file), done.stdout


def peaks_of(report):
    """By rank: its peaks over all and of each phase."""
    return {rank: ([entry[name] for name in PEAKS], entry["phases"])
            for entry in report["ranks"] for rank in range(entry["ranks"][0], entry["ranks"][1] + 1)}


def recorded_peaks():
    with open(RECORDED, encoding="utf-8") as file:
        return json.load(file)


def record(case, peaks):
    cases = {**recorded_peaks()["cases"], case: peaks}
    with open(RECORDED, "w", encoding="utf-8") as file:
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(cases[name])}" for name in sorted(cases))
        file.write(f'{{\n  "columns": {json.dumps(list(COLUMNS))},\n  "cases": {{\n{lines}\n  }}\n}}\n')


def check(case, repeats, start=started):
    cards, command = command_of(case)
    rehearsals = 1 if repeats == "record" else int(repeats)
    reports, printed = zip(*(rehearse(["--gpus", f"{cards}xH100-80GB"], command, start=start) for _ in range(rehearsals)))
    first = peaks_of(reports[0])
    assert reports[0]["schema"] == "vramfit/rehearsal@1", reports[0]["schema"]
    assert sorted(first) == list(range(cards)), first
    for (requested, allocated, reserved, total, _), _ in first.values():
        assert 0 < requested <= allocated <= reserved < total, first
    # As it was when its figures were last looked at, with the pinned packages: changes of the stand-ins and of the replay must not move them.
    peaks = [first[rank][0][:len(COLUMNS)] for rank in sorted(first)]
    if repeats == "record":
        return record(case, peaks)
    assert peaks == recorded_peaks()["cases"][case], f"{peaks}, recorded: {recorded_peaks()['cases'][case]}"
    for number, report in enumerate(reports[1:], 2):
        if peaks_of(report) != first:
            sys.exit(f"rehearsal {number} differs from the first:\n{json.dumps(first)}\n{json.dumps(peaks_of(report))}")
    if case in RESIDENT_BYTES:
        assert f"resident {RESIDENT_BYTES[case]}\n" in printed[0], (RESIDENT_BYTES[case], printed[0])
    escapes = [escape for process in reports[0]["processes"] for escape in process["escapes"]]
    assert not escapes, escapes
    print(f"{case}: {first[0][0]} in {repeats} rehearsals; {reports[0]['values']}")


def main():
    if sys.argv[1:] != ["alone"]:
        return check(*sys.argv[1:])
    with WarmPrograms("torch", "torch._dynamo", "transformers", "torchao.optim") as programs:
        for case in ALONE:
            check(case, "1", programs.run)


if __name__ == "__main__":
    main()
