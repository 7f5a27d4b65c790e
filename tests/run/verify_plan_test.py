"""`vramfit plan --verify phantom`: what is given has run on phantom GPUs; what fails there is said and isn't given."""

import json
import os
import subprocess
import tempfile
import unittest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
PLAN = ["plan", "llama-3.2-1b", "--gpus", "1xRTX4090", "--seq-len", "4096", "--global-batch", "16"]


def vramfit(*arguments, memory=None):
    """`memory`: what the phantom card really has, unlike what the planner believes."""
    environment = {} if memory is None else {"VRAMFIT_PHANTOM_SET": f"memory_bytes={memory}"}
    return subprocess.run([os.path.join(BIN, "vramfit"), *arguments], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, **environment})


class VerifiedPlan(unittest.TestCase):
    def test_the_plan_is_the_one_without_it_and_carries_what_was_rehearsed(self):
        unverified = json.loads(vramfit(*PLAN, "--json").stdout)
        with tempfile.TemporaryDirectory(prefix="vramfit-verify-") as folder:
            path = os.path.join(folder, "plan.json")
            done = vramfit(*PLAN, "--verify", "phantom", "-o", path)
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
            self.assertEqual(vramfit("run", path, "--device", "phantom", "--steps", "1").returncode, 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(plan["job"], unverified["job"])
        self.assertNotIn("rejected", plan)
        rehearsal = plan["rehearsal"]
        self.assertEqual(rehearsal["predicted_reserved_bytes"], plan["ranks"][plan["worst"]]["peak_reserved_bytes"])
        self.assertEqual(rehearsal["reserved_bytes"], rehearsal["predicted_reserved_bytes"])
        self.assertIn("Rehearsed on phantom GPUs: reserved ", done.stdout)

    def test_a_plan_that_runs_out_is_said_and_the_next_best_that_passes_is_given(self):
        plan = json.loads(vramfit(*PLAN, "--json").stdout)
        worst = plan["ranks"][plan["worst"]]
        done = vramfit(*PLAN, "--verify", "phantom:20", "--json", memory=worst["total_bytes"] - (64 << 20))
        self.assertEqual(done.returncode, 0, done.stderr)
        other = json.loads(done.stdout)
        self.assertEqual(other["rejected"][0]["job"], plan["job"])
        self.assertEqual(done.stderr.count("vramfit: rejected: "), len(other["rejected"]))
        self.assertNotIn(other["job"], [each["job"] for each in other["rejected"]])
        self.assertLessEqual(other["prediction"]["tokens_per_second"], plan["prediction"]["tokens_per_second"])
        self.assertLess(other["ranks"][other["worst"]]["total_bytes"], worst["total_bytes"])
        for rejected in other["rejected"]:
            self.assertIn("out of memory", rejected["why"])

    def test_without_one_that_passes_there_is_no_plan(self):
        done = vramfit(*PLAN, "--verify", "phantom:2", "--json", memory=4 << 30)
        self.assertEqual(done.returncode, 4, done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual((answer["verdict"], len(answer["rejected"])), ("no_plan", 2))
        self.assertIn("no plan passes on phantom GPUs: 2 rehearsed", answer["why"])

    def test_what_cannot_be_rehearsed_is_refused_by_name(self):
        for arguments, words, code in [(["--gpus", "2xcpu-1GiB", "--verify", "phantom"], "plays GPUs", 4), (["--gpus", "1xL4", "--verify", "gpus"], "phantom", 2),
                                       (["--gpus", "1xL4", "--verify", "phantom:0"], "--verify", 2),
                                       (["--gpus", "2xL4", "--runtime", "pytorch-fsdp2", "--verify", "phantom"], "vramfit rehearse", 4)]:
            with self.subTest(arguments=arguments):
                done = vramfit("plan", "gpt2", *arguments)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
