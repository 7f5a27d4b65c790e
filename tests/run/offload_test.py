"""Offloading on CPU ranks: another place, the same numbers. Checkpoints don't say where states were, so a run may go on with another kind."""

import os
import shutil
import unittest

import checkpoints
from checkpoints import Workplace, contents

KINDS = ["optimizer", "optimizer+gradients", "params", "params,activations:every:2"]
JOBS = [(1, ()), (2, ("--precision", "bf16-mixed", "--checkpointing", "full")), (4, ("--precision", "fp16-mixed")),
        (2, ("--micro-batch", "1", "--freeze", "layers:0"))]
# Planned for each kind, units might differ, and files have tensors in the order of units.
SAME = ("--wrap", "layer")


class Offload(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("llama", steps=3)

    def trained(self, ranks, job, *flags, place=None):
        place = place or self.place
        full = place.fresh("full")
        run = place.run("--dump-gradients", "2", "--save-full", full, *flags, ranks=ranks, job=job)
        self.assertEqual(run.code, 0, run.errors)
        return run.losses, run.parameters, contents(os.path.join(full, "model.safetensors")), contents(place.path("dump", "gradients-step2.safetensors"))

    def test_same_numbers(self):
        for ranks, job in JOBS:
            kept = self.trained(ranks, (*job, *SAME, "--offload", "none"))
            for kind in KINDS:
                with self.subTest(ranks=ranks, job=job, kind=kind):
                    self.assertTrue(self.trained(ranks, (*job, *SAME, "--offload", kind)) == kept)

    def test_gradients_that_are_dumped_are_whole_where_nothing_is_clipped(self):
        place = Workplace("llama", steps=3, clip="0")
        kept = self.trained(2, (*SAME, "--offload", "none"), place=place)
        for kind in KINDS[:2]:
            with self.subTest(kind=kind):
                self.assertTrue(self.trained(2, (*SAME, "--offload", kind), place=place) == kept)

    def test_replicas_keep_what_the_host_updates(self):
        job = ("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")
        self.assertTrue(self.trained(4, (*job, "--offload", "optimizer")) == self.trained(4, (*job, "--offload", "none")))

    def test_checkpoints_of_trained_codes_hold_masters(self):
        job = (*SAME, "--quantization", "fp8", "--offload")
        whole = self.place.run(ranks=2, job=(*job, "optimizer"))
        self.assertNotEqual(whole.parameters, self.place.run(ranks=2, job=(*SAME, "--offload", "optimizer")).parameters)
        for kind in ("optimizer+gradients", "params", "params,activations"):
            self.assertEqual(self.place.run(ranks=2, job=(*job, kind)).parameters, whole.parameters)
        saved = self.place.fresh("saved")
        begun = self.place.run("--save", saved, "--save-every", "2", "--save-full", self.place.fresh("full"), ranks=2, job=(*job, "optimizer"))
        self.assertEqual(begun.parameters, whole.parameters)
        shutil.rmtree(os.path.join(saved, "step-00000003"))
        resumed = self.place.run("--resume", saved, ranks=2, job=(*job, "params"))
        self.assertEqual(resumed.code, 0, resumed.errors)
        self.assertEqual(resumed.parameters, whole.parameters)

    def test_a_resumed_run_may_keep_states_elsewhere(self):
        whole = self.place.run(ranks=2)
        for first, then in [("none", "params"), ("params", "optimizer")]:
            with self.subTest(first=first, then=then):
                saved = self.place.fresh("saved")
                begun = self.place.run("--save", saved, "--save-every", "2", ranks=2, job=("--offload", first))
                self.assertEqual(begun.code, 0, begun.errors)
                self.assertEqual(begun.parameters, whole.parameters)
                shutil.rmtree(os.path.join(saved, "step-00000003"))
                resumed = self.place.run("--resume", saved, ranks=2, job=("--offload", then))
                self.assertEqual(resumed.code, 0, resumed.errors)
                self.assertEqual(resumed.parameters, whole.parameters)


if __name__ == "__main__":
    checkpoints.use_forks()
    unittest.main()
