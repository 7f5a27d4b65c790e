"""An update within backward on CPU ranks: earlier, with the same numbers. Checkpoints don't say when units were updated, so a run may go on either way."""

import json
import os
import shutil
import subprocess
import unittest

from checkpoints import BIN, MODELS, Workplace, contents

HYBRID = ("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")
JOBS = [(1, ("--precision", "bf16-mixed", "--checkpointing", "full", "--optimizer", "adafactor")), (4, (*HYBRID, "--bucket-bytes", "2000")),
        (2, ("--precision", "bf16-pure", "--wrap", "none", "--freeze", "layers:0", "--optimizer", "adamw-8bit"))]


class OptimizerInBackward(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("llama", steps=4)

    def command(self, ranks, job, *flags):
        """Of a run whose learning rate rises for two steps and then falls."""
        precision = () if "--precision" in job else ("--precision", "fp32")
        return [os.path.join(BIN, "vramfit"), "run", os.path.join(MODELS, "llama.json"), "--gpus", f"{ranks}xcpu-1GiB", *precision,
                "--seq-len", "16", "--global-batch", "4", "--grad-accum", "1", *job, "--data", self.place.data, "--token-bytes", "4", "--steps", "4", "--lr", "0.01",
                "--warmup", "2", "--clip", "0", "--weight-decay", "0.3", "--threads", "1", *flags]

    def run_of(self, ranks, job, *flags):
        dump, record = self.place.fresh("dump"), self.place.path("run.json")
        os.makedirs(dump)
        done = subprocess.run(self.command(ranks, job, "--dump-state", dump, "-o", record, *flags), capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return contents(os.path.join(dump, "parameters.safetensors"))

    def trained(self, ranks, job, *flags):
        """Losses and parameters, and every file with parameters and states of the last step's checkpoint."""
        saved = self.place.fresh("saved")
        parameters = self.run_of(ranks, job, "--save", saved, *flags)
        losses = json.loads(contents(self.place.path("run.json")))["loss"]
        last = os.path.join(saved, "step-00000004")
        states = {name: contents(os.path.join(last, name)) for name in sorted(os.listdir(last)) if name.endswith(".safetensors")}
        self.assertTrue(states)
        return losses, parameters, states

    def test_same_numbers(self):
        for ranks, job in JOBS:
            with self.subTest(ranks=ranks, job=job):
                at_end, in_backward = (self.trained(ranks, (*job, "--optimizer-in-backward", value)) for value in ("off", "on"))
                self.assertTrue(in_backward == at_end)

    def test_a_resumed_run_may_update_at_another_time(self):
        whole = self.run_of(2, ())
        for first, then in [("off", "on"), ("on", "off")]:
            with self.subTest(first=first, then=then):
                saved = self.place.fresh("saved")
                self.run_of(2, ("--optimizer-in-backward", first), "--save", saved, "--save-every", "2")
                shutil.rmtree(os.path.join(saved, "step-00000004"))
                self.assertTrue(self.run_of(2, ("--optimizer-in-backward", then), "--resume", saved) == whole)

    def test_a_plan_without_clipping_runs_without(self):
        vramfit, plan, record = os.path.join(BIN, "vramfit"), self.place.path("plan.json"), self.place.path("run.json")
        job = (os.path.join(MODELS, "llama.json"), "--gpus", "1xcpu-1GiB", "--seq-len", "16", "--optimizer-in-backward", "on", "--no-clip")
        planned = subprocess.run([vramfit, "plan", *job, "-o", plan], capture_output=True, text=True, timeout=120, check=False)
        self.assertIn("--no-clip", planned.stdout)
        steps = ("--steps", "1", "--threads", "1", "-o", record)
        for start in ((plan,), job):
            done = subprocess.run([vramfit, "run", *start, *steps], capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertFalse(json.loads(contents(record))["effects"]["clip"])
        clips = subprocess.run([vramfit, "run", plan, "--clip", "1", *steps], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((clips.returncode, clips.stdout), (1, ""))
        self.assertIn("--optimizer-in-backward on with gradient clipping (", clips.stderr)

    def test_what_a_run_needs_all_gradients_for_is_refused_by_name(self):
        on, dump = ("--optimizer-in-backward", "on"), self.place.fresh("dump")
        done = subprocess.run(self.command(1, on, "--dump-state", dump, "--dump-gradients", "2"), capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--dump-gradients: an update within backward never has all gradients at once", done.stderr)


if __name__ == "__main__":
    unittest.main()
