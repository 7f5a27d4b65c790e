"""Which ranks are played: those that differ, those that send another its objects, and all of several nodes. The programs call the CUDA
runtime by ctypes; what stands for torch in the stage's script has only what the collectives of objects use.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "tests", "cli"))
from schemas_test import check, load  # noqa: E402

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
ALLOCATE = """import ctypes, json, os, sys, time
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
runtime, block = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
def allocate(gib):
    assert runtime.cudaSetDevice(local) == 0
    code = runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(gib << 30))
    if code:
        sys.exit(f"rank {rank} got error {code}")
"""
DIFFERENT = ALLOCATE + "allocate(9 if rank >= 5 else 4)\n"
EVERYWHERE = ALLOCATE + """allocate(60)
if "VRAMFIT_PHANTOM_NODE" in os.environ:  # not when rank 0 is played alone
    with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
        json.dump([local, int(os.environ["WORLD_SIZE"]), os.environ.get("OMPI_COMM_WORLD_RANK")], file)
    while len(os.listdir(sys.argv[1])) < 4:  # until all have their memory
        time.sleep(0.02)
time.sleep(float(sys.argv[2]))
"""
STAGE = ALLOCATE + """from types import SimpleNamespace
from vramfit_rehearsal import object_collectives
class Tensor:
    def __len__(self): return 0
    def __getitem__(self, _): return self
    def to(self, _): return self
    def copy_(self, _): return self
nothing = lambda *_, **__: Tensor()
groups = SimpleNamespace(send=nothing, recv=nothing, get_rank=lambda group=None: rank, get_backend=lambda group: "nccl")
cuda = SimpleNamespace(current_device=lambda: local)
torch = SimpleNamespace(distributed=groups, empty=nothing, tensor=nothing, frombuffer=nothing, long=None, uint8=None, device=nothing, cuda=cuda)
objects = object_collectives.ObjectCollectives(torch, ghosts=True)
got = [None, None]
if rank > 0:
    objects.recv_object_list(got, src=rank - 1)
    assert got == [{"from": rank - 1}, "shape"], got
allocate(rank + 1)
if rank < 3 and sys.argv[1:] != [str(rank)]:
    objects.send_object_list([{"from": rank}, "shape"], dst=rank + 1)
print("rank", rank, "is done")
"""


class Ranks(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def rehearse(self, gpus, ranks, script, *words, launcher=()):
        path, report = os.path.join(self.folder, "program.py"), os.path.join(self.folder, "report.json")
        with open(path, "w", encoding="utf-8") as out:
            out.write(script)
        command = [VRAMFIT, "rehearse", "--gpus", gpus, "--ranks", ranks, "-o", report, "--", *launcher, sys.executable, path, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if not os.path.exists(report):
            return done, None
        with open(report, encoding="utf-8") as file:
            found, schema = json.load(file), load("rehearsal.schema.json")
        check(found, schema, schema)
        return done, found

    def test_ranks_that_differ_are_found_and_the_report_says_which_were_played(self):
        done, report = self.rehearse("2x4xH100-80GB", "worst", DIFFERENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(report["played_ranks"], [0, 2, 3, 4, 5, 6, 7])  # 5 because 4 and 6 differ
        gib = {entry["ranks"][0]: entry["peak_reserved_bytes"] >> 30 for entry in report["ranks"]}
        self.assertEqual(gib, {0: 4, 2: 4, 5: 9})
        self.assertEqual(report["ranks"][report["worst"]]["ranks"], [5, 7])
        self.assertIn("of the ranks that were played (7 of 8)", done.stdout)
        self.assertIn("ranks 0, 2-7 were played, each alone among ghosts; ranks 1 were not", done.stdout)

    def test_few_ranks_are_all_played(self):
        done, report = self.rehearse("4xH100-80GB", "worst", DIFFERENT)
        self.assertEqual(report["played_ranks"], [0, 1, 2, 3])
        self.assertNotIn("of the ranks that were played", done.stdout)

    def test_a_stage_gets_its_objects_from_a_rehearsal_of_the_stage_before_it(self):
        done, report = self.rehearse("4xH100-80GB", "2", STAGE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line for line in done.stdout.splitlines() if line.endswith("is done")],
                         ["rank 0 is done", "rank 1 is done", "rank 2 is done"])
        self.assertEqual([entry["ranks"] for entry in report["ranks"]], [[2, 2]])
        for receiver, sender in ((1, 0), (2, 1)):
            self.assertIn(f"objects that rank {receiver} receives are those that rank {sender} sent", done.stdout)
        done, report = self.rehearse("4xH100-80GB", "worst", STAGE)
        self.assertEqual([entry["peak_reserved_bytes"] >> 30 for entry in report["ranks"]], [1, 2, 3, 4], done.stderr)
        self.assertEqual(done.stdout.count("is done"), 4)  # no rank is played twice

    def test_a_sender_that_sends_nothing_is_named(self):
        done, _ = self.rehearse("4xH100-80GB", "1", STAGE, "0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank 1 receives objects that rank 0 did not send when it was played alone", done.stderr)

    def test_all_ranks_of_several_nodes_run_on_this_machine_and_each_node_has_its_own_gpus(self):
        for launcher in ((), ("mpirun.openmpi", "-np", "4", "-npernode", "2")):
            places = os.path.join(self.folder, f"places{len(launcher)}")
            os.mkdir(places)
            done, report = self.rehearse("2x2xH100-80GB", "all", EVERYWHERE, places, "0", launcher=launcher)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([entry["ranks"] for entry in report["ranks"]], [[0, 3]])
            for rank in range(4):
                with open(os.path.join(places, str(rank)), encoding="utf-8") as file:
                    self.assertEqual(json.load(file), [rank % 2, 4, str(rank) if launcher else None])

    def test_more_ranks_than_the_host_bears_are_refused_with_the_figures(self):
        done, _ = self.rehearse("65536x8xH100-80GB", "all", EVERYWHERE, self.folder, "2.5")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, r"--ranks all: 524288 ranks would take \d+\.\d GiB of host memory \(0\.\d\d each, as rank 0 did alone\)")


if __name__ == "__main__":
    unittest.main()
