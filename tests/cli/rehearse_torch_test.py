"""vramfit rehearse around PyTorch: phases, what the script itself sees of its peaks, out-of-memory, and programs that end badly.

Scripts are forks of a process that has imported torch; those for which it matters how Python starts, or what it has imported, have a process of their own.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

from schemas_test import check, load

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rehearse"))
from warm_programs import WarmPrograms  # noqa: E402

PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
MIB = 1 << 20

# A 16 MiB weight (fp32), a batch of 2 MiB, gradients and two states: every figure below follows from these.
TRAIN = """
import sys, torch
def peaks(device=0):
    stats = torch.cuda.memory_stats(device)
    print(torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device), torch.accelerator.max_memory_allocated(device),
          sum(value for key, value in stats.items() if key.endswith(".peak")), torch.cuda.memory_stats_as_nested_dict(device)["segment"]["all"]["peak"])
model = torch.nn.Linear(2048, 2048, bias=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(4):
    for micro in range(2):
        model(torch.ones(256, 2048, device="cuda")).sum().backward()
        peaks()
    optimizer.step()
    optimizer.zero_grad()
    peaks()
    if step == 1:
        torch.cuda.reset_peak_memory_stats()
        peaks()
    if step == 2:
        torch.accelerator.reset_peak_memory_stats()
        peaks()
with torch.no_grad():
    model(torch.ones(4096, 2048, device="cuda"))
peaks()
"""

OUT_OF_MEMORY = """
import os, sys, torch
model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
kept = []
for step in range(100):
    try:
        batch = torch.ones(131072 if step > 0 else 64, 4096, device="cuda")
        output = model(batch)
        output.sum().backward()
        optimizer.step()
        kept.append(output if step > 0 else None)
    except torch.OutOfMemoryError:
        if "catch" not in sys.argv:
            raise
        print("caught")
        break
"""


class RehearseTorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.warm = cls.enterClassContext(WarmPrograms())

    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)

    def path(self, name, text):
        path = os.path.join(self.holder.name, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def rehearse(self, flags, code, *words, python=None, expected=0, gpus="1xT4", **variables):
        """The document, and what CMD printed. `python`: flags of one that is started for it."""
        output = os.path.join(self.holder.name, "rehearsal.json")
        command = [PROGRAM, "rehearse", "--gpus", gpus, "-o", output, *flags, "--", sys.executable, *(python or ()), self.path("program.py", code), *words]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", **variables}
        done = (self.warm.run(command, timeout=200, env=environment) if python is None else
                subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment))
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        with open(output, encoding="utf-8") as file:
            document = json.load(file)
        schema = load("rehearsal.schema.json")
        check(document, schema, schema)
        for rank in document["ranks"]:
            self.assertEqual(sum(rank["breakdown"].values()), rank["total_bytes"])
        return document, done.stdout

    def test_the_script_sees_the_peaks_that_it_would_see_without_statistics_and_phases_have_their_own(self):
        document, watched = self.rehearse([], TRAIN, python=[])
        blind, alone = self.rehearse([], TRAIN, python=["-E"])  # Python without PYTHONPATH: nobody reads or resets
        own = [line for line in watched.splitlines() if line[:1].isdigit()]
        self.assertEqual(len(own), 15)
        self.assertEqual(own, [line for line in alone.splitlines() if line[:1].isdigit()])

        self.assertEqual(blind["ranks"][0]["source"], "driver")
        self.assertTrue(any("no statistics of PyTorch" in note for note in blind["notes"]), blind["notes"])
        rank = document["ranks"][0]
        self.assertEqual((rank["source"], rank["steps"], document["verdict"]), ("torch", 4, "fits"))
        phases = {(phase["phase"], phase["step"]): phase["peak_allocated_bytes"] for phase in rank["phases"]}
        self.assertEqual(set(phases), {("load", "first"), *((name, step) for name in ("forward", "backward", "optimizer", "other")
                                                            for step in ("first", "steady"))})
        weight, batch = 16 * MIB, 2 * MIB
        self.assertEqual(phases["load", "first"], weight + batch)
        self.assertEqual(phases["optimizer", "first"] - phases["optimizer", "steady"], 0)
        self.assertGreaterEqual(phases["optimizer", "first"], 4 * weight)
        self.assertGreaterEqual(phases["other", "steady"], 3 * weight + 2 * 32 * MIB)  # the evaluation: 4096 rows in, 4096 out
        self.assertEqual(max(phases.values()), rank["peak_allocated_bytes"])

    def test_running_out_of_memory_gives_six_and_says_where_and_what_lived(self):
        document, text = self.rehearse(["--snapshot", os.path.join(self.holder.name, "s.pickle")], OUT_OF_MEMORY, expected=6)
        self.assertTrue(text.startswith("OUT OF MEMORY: rank 0 asked for 2.00 GiB in "), text)
        self.assertEqual(document["verdict"], "does_not_fit")
        (event,) = document["ranks"][0]["out_of_memory"]
        live = {kind["what"]: kind["bytes"] for kind in event["live"]}
        weight = 64 * MIB
        self.assertEqual((live["parameters"], live["gradients"], live["optimizer state"]), (weight, weight, weight))
        self.assertEqual(sum(live.values()), event["allocated_bytes"])
        self.assertEqual(event["blocks"][0]["bytes"], 2048 * MIB)
        self.assertEqual(event["asked_bytes"], 2048 * MIB)
        with open(os.path.join(self.holder.name, "s.pickle"), "rb") as file:
            snapshot = pickle.load(file)
        self.assertTrue(any(event["action"] == "oom" for trace in snapshot["device_traces"] for event in trace))

    def test_an_out_of_memory_that_the_script_catches_is_a_risk_and_no_failure(self):
        document, _ = self.rehearse([], OUT_OF_MEMORY, "catch")
        self.assertEqual((document["verdict"], document["fits"]), ("at_risk", False))
        self.assertTrue(any("ran out of memory 1 times and went on" in note for note in document["notes"]), document["notes"])

    def test_a_batch_that_is_reduced_until_it_fits_is_named_and_fails_where_that_is_asked_for(self):
        document, text = self.rehearse(["--strict-oom"], """
import torch
from accelerate.utils import find_executable_batch_size
model = torch.nn.Linear(4096, 4096, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
@find_executable_batch_size(starting_batch_size=1 << 19)
def train(batch_size):
    for step in range(2):
        model(torch.ones(batch_size, 4096, device="cuda")).sum().backward()
        optimizer.step()
    print("worked", batch_size)
train()
""", expected=6)
        (worked,) = [int(line.split()[1]) for line in text.splitlines() if line.startswith("worked")]
        rank = document["ranks"][0]
        self.assertEqual(rank["worked_inputs"], [worked, 4096])
        failed = rank["out_of_memory"][-1]["inputs"]
        self.assertEqual((int(failed[0] * 0.9), failed[1]), (worked, 4096))  # by which accelerate reduces it
        self.assertRegex(text, rf"AT RISK: .*ran out of memory \d+ times and went on; .* {worked} x 4096 in the last step that succeeded")
        self.assertEqual((document["verdict"], document["exit_code"]), ("at_risk", 0))

    def test_a_process_with_two_cards_has_figures_for_each(self):
        document, _ = self.rehearse([], """
import torch
a = torch.empty(3 << 20, dtype=torch.uint8, device="cuda:0")
b = torch.empty(5 << 20, dtype=torch.uint8, device="cuda:1")
""", gpus="3xT4")
        self.assertEqual([(rank["card"], rank["peak_allocated_bytes"]) for rank in document["ranks"]], [(0, 3 * MIB), (1, 5 * MIB)])

    def test_a_process_that_ends_without_ceremony_keeps_its_figures_and_its_exit_code(self):
        start = "import os, torch\nkept = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')\nkept[0].item()\n"
        for end, code in (("os._exit(9)", 9), ("raise RuntimeError('a bug')", 1)):
            # The process's card 0 is the node's card 1.
            document, _ = self.rehearse([], start + end, expected=code, gpus="2xT4", CUDA_VISIBLE_DEVICES="1")
            rank = document["ranks"][0]
            self.assertEqual((rank["source"], rank["card"], rank["peak_allocated_bytes"]), ("torch", 0, 3 * MIB), end)
            self.assertEqual(rank["breakdown"]["outside_allocator"], document["cluster"]["card"]["context_bytes"], end)
            self.assertFalse(document["values"]["certain"], end)
            self.assertEqual(document["verdict"], "failed")
        self.assertEqual(document["processes"][0]["exception"], "RuntimeError: a bug")

    def test_a_training_loop_that_is_killed_or_hangs_keeps_the_figures_of_its_first_steps(self):
        loop = """
import os, signal, sys, time, torch
model = torch.nn.Linear(2048, 2048, bias=False).cuda()
for step in range(3):
    model(torch.ones(256, 2048, device="cuda")).sum().backward()
late = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
if "hang" in sys.argv: time.sleep(600)
os.kill(os.getpid(), signal.SIGKILL)
"""
        for flags, words, code, verdict in (([], [], 137, "failed"), (["--timeout", "30"], ["hang"], 1, "timed_out")):
            document, _ = self.rehearse(flags, loop, *words, expected=code)
            self.assertEqual(document["verdict"], verdict)
            rank = document["ranks"][0]
            self.assertGreaterEqual(rank["peak_allocated_bytes"], 32 * MIB)
            # What came after the last phase boundary is known to the driver alone.
            self.assertGreaterEqual(rank["peak_reserved_bytes"], 132 * MIB)
            self.assertEqual(rank["breakdown"]["outside_allocator"], document["cluster"]["card"]["context_bytes"])
            self.assertTrue(any("did not come to its end" in note for note in document["notes"]), document["notes"])

    def test_forked_workers_that_use_no_card_change_nothing(self):
        document, _ = self.rehearse([], """
import torch
data = torch.utils.data.TensorDataset(torch.ones(64, 8))
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
for (batch,) in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context="fork"):
    batch.sum()
""")
        self.assertEqual(len(document["ranks"]), 1)
        self.assertEqual(document["ranks"][0]["peak_allocated_bytes"], 3 * MIB)

    def test_workers_of_a_dataloader_do_not_outlive_the_rehearsal(self):
        """Whether the main process ends them itself, is gone without a word, or is ended from outside."""
        code = """
import os, sys, time, torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, row):
        return torch.zeros(4)
torch.zeros(1, device="cuda")
loader = torch.utils.data.DataLoader(Rows(), num_workers=2, persistent_workers=True)
batches = iter(loader)
next(batches)
with open(sys.argv[2], "w") as file:
    print(*[worker.pid for worker in batches._workers], file=file)
if sys.argv[1] == "is interrupted":
    os.kill(os.getppid(), 15)
    time.sleep(600)
if sys.argv[1] == "is gone":
    os._exit(0)
"""
        for how, expected in (("ends", 0), ("is gone", 0), ("is interrupted", 128 + 15)):
            with self.subTest(how=how):
                pids = os.path.join(self.holder.name, "pids")
                self.rehearse([], code, how, pids, expected=expected)
                with open(pids, encoding="ascii") as file:
                    workers = file.read().split()
                self.assertEqual(len(workers), 2)
                for worker in workers:
                    self.assertFalse(os.path.exists(f"/proc/{worker}"), worker)

    def test_without_a_caching_allocator_the_driver_has_the_figures(self):
        document, _ = self.rehearse([], "import torch\nkept = torch.empty(6 << 20, dtype=torch.uint8, device='cuda')\n",
                                    PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        rank = document["ranks"][0]
        self.assertEqual(rank["total_bytes"] - rank["breakdown"]["outside_allocator"], 6 * MIB)
        self.assertEqual(rank["source"], "driver")

    def test_optimizers_that_step_inside_backward_count_as_steps_of_the_training(self):
        document, _ = self.rehearse([], """
import torch
model = torch.nn.Linear(512, 512).cuda()
optimizers = {p: torch.optim.SGD([p], lr=1e-3) for p in model.parameters()}
def step(p):
    optimizers[p].step(); optimizers[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(step)
for _ in range(3): model(torch.ones(8, 512, device="cuda")).sum().backward()
""")
        rank = document["ranks"][0]
        self.assertEqual(rank["steps"], 3)
        self.assertNotIn("optimizer", {phase["phase"] for phase in rank["phases"]})
        self.assertIn(("backward", "steady"), {(phase["phase"], phase["step"]) for phase in rank["phases"]})

    def test_compiled_code_is_compiled_as_often_as_without_statistics(self):
        code = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
module = torch.compile(model, backend="aot_eager")
function = torch.compile(lambda x: model(x).square(), backend="aot_eager", fullgraph=True)
for compiled in (module, function):
    for _ in range(10):  # more often than torch.compile recompiles before it gives up
        compiled(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("seen", torch.cuda.max_memory_allocated(), torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""
        _, watched = self.rehearse([], code, python=[])
        _, alone = self.rehearse([], code, python=["-E"])
        seen = [line for line in watched.splitlines() if line.startswith("seen")]
        self.assertEqual(len(seen), 2)
        self.assertEqual(seen, [line for line in alone.splitlines() if line.startswith("seen")])

    def test_a_sitecustomize_that_was_there_still_runs_and_a_program_without_torch_gets_none_of_it(self):
        self.path("site/sitecustomize.py", "import builtins\nbuiltins.customized = __file__\n")
        code = "import sys; print(customized, 'torch' in sys.modules, 'vramfit_rehearsal' in sys.modules, sys.modules['sitecustomize'].__file__)"
        done = subprocess.run([PROGRAM, "rehearse", "--gpus", "1xT4", "--", sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=60, check=False, env={**os.environ, "PYTHONPATH": os.path.join(self.holder.name, "site")})
        mine = os.path.join(self.holder.name, "site", "sitecustomize.py")
        self.assertEqual(done.stdout.splitlines()[0], f"{mine} False False {mine}", done.stderr)

    def test_doctor_says_whether_a_python_can_be_rehearsed(self):
        def doctor(python):
            return subprocess.run([PROGRAM, "doctor", "--python", python], capture_output=True, text=True, timeout=180, check=False)

        done = doctor(sys.executable)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\ntorch +\d\S+, CUDA \d")
        self.assertIn("works: a matrix product ran on a simulated NVIDIA H100", done.stdout)
        self.assertRegex(done.stdout, r"\nstand-in +cuda1\d/libcudart\.so")
        no_python = self.path("python", "#!/bin/sh\nexit 3\n")
        os.chmod(no_python, 0o755)
        done = doctor(no_python)
        self.assertEqual(done.returncode, 1)
        self.assertIn("does not work: it does not run a few lines of Python", done.stdout)
        self.assertEqual(doctor("/no/such/python").returncode, 2)


if __name__ == "__main__":
    unittest.main()
