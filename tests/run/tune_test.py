"""`vramfit run --tune K`: the best plans run for a few steps, the fastest trains, and what was measured is kept."""

import json
import os
import re
import subprocess
import unittest

from checkpoints import BIN, Workplace

TRIED = re.compile(r"--tune: (\d) of (\d): (\d+) tokens/s, predicted (\d+): (.*)")


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def program(*arguments):
    return subprocess.run([os.path.join(BIN, "vramfit"), *arguments], capture_output=True, text=True, timeout=300, check=False)


class OnCpuRanks(unittest.TestCase):
    def setUp(self):
        self.place = Workplace("llama", rows=8)
        self.addCleanup(self.place.directory.cleanup)

    def test_the_fastest_of_two_plans_trains_as_any_would_and_what_was_measured_is_kept(self):
        whole = self.place.run(ranks=2)
        run = self.place.run("--tune", "2", "--save", self.place.path("saved"), ranks=2)
        self.assertEqual(run.code, 0, run.errors)
        tried = TRIED.findall(run.errors)
        self.assertEqual([(number, most) for number, most, *_ in tried], [("1", "2"), ("2", "2")], run.errors)
        self.assertNotEqual(tried[0][-1], tried[1][-1])
        fastest = re.search(r"--tune: number (\d) is the fastest", run.errors)[1]
        self.assertEqual(fastest, max(tried, key=lambda each: int(each[2]))[0])
        plan = read(self.place.path("run.tuned.plan.json"))
        self.assertEqual(plan["job"], run.record["job"])
        self.assertLess(max(abs(a - b) / abs(b) for a, b in zip(run.losses, whole.losses, strict=True)), 1e-5)
        # Trials save nothing, and don't count as steps of the run.
        self.assertEqual(os.listdir(self.place.path("saved")), ["step-00000006"])
        self.assertEqual(len(run.losses), 6)

    def test_a_model_is_planned_first_and_the_calibration_predicts_what_the_trial_took(self):
        job = [self.place.model, "--gpus", "1xcpu-1GiB", "--seq-len", "32", "--global-batch", "8", "--precision", "fp32"]
        record, calibration = self.place.path("run.json"), self.place.path("run.calibration.json")
        done = program("run", *job, "--tune", "1", "--steps", "2", "--threads", "1", "-o", record)
        self.assertEqual(done.returncode, 0, done.stderr)
        (_, _, measured, _, flags), = TRIED.findall(done.stderr)
        estimate = program("estimate", self.place.model, "--gpus", "1xcpu-1GiB", *flags.split(), "--calibration", calibration, "--json")
        self.assertEqual(estimate.returncode, 0, estimate.stderr)
        predicted = json.loads(estimate.stdout)["speed"]["tokens_per_second"]
        share, origin = read(calibration)["figures"]["step_share"]
        self.assertTrue(origin.startswith("measured: 1 plan of 5 steps"), origin)
        # Launches have a time of their own, which no speed of kernels makes up for.
        self.assertTrue(abs(predicted / int(measured) - 1) < 0.01 or share == 1000, (predicted, measured))

    def test_phantom_gpus_and_replanning_are_refused_by_name(self):
        plan = self.place.plan(2, ())
        for flags, said in ((["--device", "phantom"], "--tune: nothing takes time on phantom GPUs"), (["--replan", "1"], "--tune and --replan: give one")):
            done = program("run", plan, "--tune", "2", *flags)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(said, done.stderr)
        self.assertIn("--tune: ", program("run", plan, "--tune", "some").stderr)

    def test_when_every_plan_runs_out_of_memory_that_is_the_end(self):
        done = program("run", self.place.plan(2, ()), "--tune", "2", "--budget", "100000", "--threads", "1")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("--tune: 1 of 2: out of memory: --runtime vramfit --precision", done.stderr)
        self.assertIn("each of the plans that were tried ran out of memory", done.stderr)


if __name__ == "__main__":
    unittest.main()
