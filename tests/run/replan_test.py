"""`vramfit run --replan K`: a run that finds too little memory is planned again, continues from its last checkpoint, and trains what it would have."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from checkpoints import Workplace, steps_in

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


class OnCpuRanks(unittest.TestCase):
    def setUp(self):
        self.place = Workplace("llama", rows=16)
        self.addCleanup(self.place.directory.cleanup)
        self.whole = self.place.run(ranks=2)
        self.assertEqual(self.whole.code, 0, self.whole.errors)
        self.peak = max(rank["peak_requested_bytes"] for rank in self.whole.record["ranks"])

    def test_a_smaller_job_trains_the_same_and_every_attempt_is_kept(self):
        run = self.place.run("--budget", str(self.peak * 8 // 10), "--replan", "3", ranks=2)
        self.assertEqual(run.code, 0, run.errors)
        self.assertLess(relative(run.losses, self.whole.losses), 1e-5)
        first, plan = read(self.place.path("run.1.json")), read(self.place.path("run.2.plan.json"))
        self.assertTrue(first["out_of_memory"])
        self.assertEqual(first["job"], self.whole.record["job"])
        self.assertEqual(plan["rejected"][0]["job"], first["job"])
        attempts = run.errors.count("planned again for ")
        self.assertGreaterEqual(attempts, 1)
        self.assertEqual(read(self.place.path(f"run.{attempts + 1}.plan.json"))["job"], run.record["job"])
        self.assertLessEqual(max(rank["peak_requested_bytes"] for rank in run.record["ranks"]), self.peak * 8 // 10)
        self.assertIn("from the first step: nothing was saved", run.errors)

    def test_it_goes_on_from_the_last_checkpoint(self):
        saved = self.place.fresh("saved")
        whole = self.place.run("--save", saved, "--save-every", "2", ranks=2)
        for step in (4, 6):
            shutil.rmtree(os.path.join(saved, f"step-{step:08}"))
        run = self.place.run("--save", saved, "--resume", saved, "--budget", str(self.peak * 8 // 10), "--replan", "3", ranks=2)
        self.assertEqual(run.code, 0, run.errors)
        self.assertIn("from the last checkpoint", run.errors)
        self.assertLess(relative(run.losses, whole.losses[2:]), 1e-5)
        self.assertEqual(steps_in(saved), [2, 6])

    def test_without_the_flag_and_without_a_smaller_plan_it_ends_as_before(self):
        budget = str(self.peak * 8 // 10)
        self.assertEqual(self.place.run("--budget", budget, ranks=2).code, 6)
        none = self.place.run("--budget", "100000", "--replan", "3", ranks=2)
        self.assertEqual(none.code, 6)
        self.assertIn("out of memory", none.errors)
        self.assertTrue(read(self.place.path("run.json"))["out_of_memory"])

    def test_what_was_fixed_stays(self):
        budget = self.peak * 8 // 10
        free = self.place.run("--budget", str(budget), "--replan", "3", ranks=2).record["job"]
        rows, loss = str(self.whole.record["job"]["micro_batch"]), self.whole.record["job"]["loss"]
        self.assertNotEqual((str(free["micro_batch"]), free["loss"]), (rows, loss))
        run = self.place.run("--budget", str(budget), "--replan", "3", ranks=2, job=("--micro-batch", rows, "--loss", loss))
        self.assertEqual(run.code, 0, run.errors)
        self.assertEqual((str(run.record["job"]["micro_batch"]), run.record["job"]["loss"]), (rows, loss))


class OnPhantomGpus(unittest.TestCase):
    JOB = ["llama-3.2-1b", "--seq-len", "4096", "--global-batch", "16"]

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="vramfit-replan-")
        self.addCleanup(directory.cleanup)
        self.plan, self.record = (os.path.join(directory.name, name) for name in ("plan.json", "run.json"))

    def vramfit(self, *arguments, memory=None):
        environment = {} if memory is None else {"VRAMFIT_PHANTOM_SET": f"memory_bytes={memory}"}
        return subprocess.run([os.path.join(BIN, "vramfit"), *arguments], capture_output=True, text=True, check=False, timeout=120,
                              env={**os.environ, **environment})

    def run_with(self, memory, *flags):
        return self.vramfit("run", self.plan, "--device", "phantom", "--steps", "3", "-o", self.record, *flags, memory=memory)

    def planned(self, *flags, gpus="1xRTX4090"):
        done = self.vramfit("plan", *self.JOB, "--gpus", gpus, *flags, "-o", self.plan)
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = read(self.plan)
        return plan["ranks"][plan["worst"]]

    def test_a_card_with_less_than_the_plan_believes_gets_a_plan_that_fits_it(self):
        memory = self.planned()["total_bytes"] * 94 // 100
        self.assertEqual(self.run_with(memory).returncode, 6)
        run = self.run_with(memory, "--replan", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        record = read(self.record)
        self.assertLessEqual(record["ranks"][0]["total_bytes"], memory)
        self.assertEqual(record["ranks"][0]["alloc_retries"], 0)
        self.assertIn("ran out of memory; planned again for 1xRTX4090@", run.stderr)

    def test_retries_are_reason_enough(self):
        worst = self.planned("--allocator", "native", "--checkpointing", "full", "--loss", "full", "--micro-batch", "2", gpus="1xRTX4090@30GiB")
        plan = read(self.plan)
        self.assertEqual(plan["fixed"], ["checkpointing", "loss", "allocator", "seq_len", "micro_batch", "global_batch"])
        plan["fixed"] = ["allocator"]
        with open(self.plan, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        memory = worst["total_bytes"] - (300 << 20)  # releasing cached memory is just enough
        self.assertEqual(self.run_with(memory).returncode, 0)
        self.assertGreater(read(self.record)["ranks"][0]["alloc_retries"], 0)
        run = self.run_with(memory, "--replan", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("needed retries when run; planned again", run.stderr)
        self.assertEqual(read(self.record)["ranks"][0]["alloc_retries"], 0)
        self.assertIn("tried again, ", read(self.record.replace(".json", ".1.json"))["message"])


if __name__ == "__main__":
    unittest.main()
