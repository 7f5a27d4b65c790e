"""Process groups on phantom GPUs: between processes, with ghosts, with ranks that die.

Usage: groups_test.py all|alone|lost|bytes|checkpoint
"""
import json
import os
import re
import subprocess
import sys
import tempfile

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes", "alloc_retries", "phases",
         "breakdown")


def rehearse(arguments, script, ranks=0, environment=None):
    """(exit code, what was printed, the report)"""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
    command = [sys.executable, *launcher, os.path.join(FOLDER, script[0]), *script[1:]]
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        done = subprocess.run([VRAMFIT, "rehearse", "-o", report, *arguments, "--", *command], text=True, capture_output=True,
                              timeout=300, env={**os.environ, **(environment or {})})
        with open(report, encoding="utf-8") as file:
            return done.returncode, done.stdout + done.stderr, json.load(file)


def well(code, printed, report):
    if code != 0:
        sys.exit(f"exit code {code}\n{printed[-8000:]}")
    return printed, report


def played_by_all():
    for how in ([], ["bound"]):
        printed, report = well(*rehearse(["--gpus", "4xH100-80GB"], ["groups.py", *how], ranks=4))
        assert all(f"rank {rank} ok" in printed for rank in range(4)), printed
        assert report["values"]["certain"], report["values"]


def played_alone():
    for gpus, rank, how in (("4xH100-80GB", 0, []), ("64x8xH100-80GB", 261, ["bound"])):
        printed, report = well(*rehearse(["--gpus", gpus, "--ranks", str(rank)], ["groups.py", "alone", *how]))
        assert f"rank {rank} ok" in printed, printed
        assert re.search("ghosts .*answered", printed), printed
        invented = report["values"]
        assert not invented["certain"] and f"values: {invented['invented_reads']} invented reads" in printed, (invented, printed)
        places = " ".join(invented["invented_places"])
        for call in ("all_reduce of 2 float32", "all_reduce of 1 bfloat16", "all_gather of 1 int64", "reduce_scatter of 1 int64", "all_to_all of 1 int64", "receive of 1 int64"):
            assert call in places, (call, places)


def lost():
    """The time-out of the first is an hour, so that it is the end that is noticed; the second's is longer than ranks may come one after the other."""
    for how, seconds, expected in (([], 3600, "has ended"), (["silent"], 10, "did not make the same call within 10 s")):
        code, printed, _ = rehearse(["--gpus", "2xH100-80GB"], ["dying_rank.py", *how], ranks=2, environment={"VRAMFIT_PHANTOM_SET": f"nccl_timeout={seconds}"})
        assert code != 0 and "rank 0 was told" in printed and expected in printed, printed[-6000:]


def equal_bytes():
    """Rank 0 of 4 needs the same bytes whether its fellows run or are ghosts; of 512, it runs."""
    script = ["fully_shard.py"]
    alone = well(*rehearse(["--gpus", "4xH100-80GB", "--ranks", "0"], script))[1]["ranks"]
    together = well(*rehearse(["--gpus", "4xH100-80GB"], script, ranks=4))[1]["ranks"]
    mine = next(entry for entry in together if entry["ranks"][0] == 0)
    for name in PEAKS:
        assert alone[0][name] == mine[name], (name, alone[0][name], mine[name])
    large = well(*rehearse(["--gpus", "64x8xH100-80GB", "--ranks", "0"], script))[1]["ranks"]
    assert 0 < large[0]["peak_allocated_bytes"] < alone[0]["peak_allocated_bytes"], large


def checkpoint():
    """A rank played alone saves and loads its own shards, whether or not it would be the coordinator."""
    for rank in (0, 2):
        with tempfile.TemporaryDirectory() as folder:
            printed, _ = well(*rehearse(["--gpus", "4xH100-80GB", "--ranks", str(rank)], ["checkpointing_group.py", folder]))
            assert f"rank {rank} saved" in printed, printed
            for name in ("first", "second"):
                assert f"__{rank}_0.distcp" in os.listdir(os.path.join(folder, name))


if __name__ == "__main__":
    {"all": played_by_all, "alone": played_alone, "lost": lost, "bytes": equal_bytes, "checkpoint": checkpoint}[sys.argv[1]]()
