"""Wishes that contradict each other, or that no plan can fulfil: one explanation that names what conflicts and the right exit code."""

import os
import subprocess
import unittest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
H100S = ("llama-3.1-8b", "--gpus", "8xH100-80GB")
USAGE, NO_PLAN = 2, 4

# Model, cluster and flags; the exit code; words of the explanation.
WISHES = [
    ((*H100S, "--global-batch", "7"), USAGE, ["--global-batch 7", "8 data ranks"]),
    ((*H100S, "--micro-batch", "4", "--grad-accum", "3", "--global-batch", "13"), USAGE, ["--global-batch 13", "8 data ranks"]),
    ((*H100S, "--micro-batch", "4", "--grad-accum", "3", "--global-batch", "64"), USAGE, ["--global-batch 64", "--micro-batch 4", "--grad-accum 3"]),
    ((*H100S, "--micro-batch", "4", "--global-batch", "8"), USAGE, ["--global-batch 8", "--micro-batch 4"]),
    ((*H100S, "--grad-accum", "5", "--global-batch", "16"), USAGE, ["--global-batch 16", "--grad-accum 5"]),
    ((*H100S, "--sharding", "hybrid-shard", "--mesh", "replicate=3,shard=2"), USAGE, ["--mesh replicate=3,shard=2", "6 ranks", "8 cards"]),
    ((*H100S, "--sharding", "full-shard", "--mesh", "replicate=8,shard=1"), USAGE, ["--mesh replicate=8,shard=1", "full-shard"]),
    ((*H100S, "--sharding", "no-shard", "--reshard", "always"), USAGE, ["--reshard", "--sharding no-shard"]),
    ((*H100S, "--reshard", "3"), USAGE, ["--reshard 3", "groups of 2, 4, 8"]),
    (("gpt2", "--gpus", "1xRTX4090", "--seq-len", "2048"), USAGE, ["--seq-len 2048", "1024 positions"]),
    (("llama-3.1-8b", "--gpus", "8xT4", "--precision", "bf16-pure"), USAGE, ["--precision bf16-pure", "T4"]),
    (("llama-3.1-8b", "--gpus", "8xV100-32GB", "--precision", "fp8"), USAGE, ["--precision fp8", "V100-32GB"]),
    (("gpt2", "--gpus", "1xL4", "--objective", "longest-sequence", "--seq-len", "512"), USAGE, ["--objective longest-sequence", "--seq-len"]),
    (("llama-3.1-70b", "--gpus", "8xRTX4090", "--sharding", "no-shard"), NO_PLAN, ["the smallest needs", "of 23.52 GiB", "--sharding no-shard"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--sharding", "no-shard"), NO_PLAN, ["without --sharding no-shard it would fit at"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--checkpointing", "none", "--seq-len", "8192"), NO_PLAN, ["without --checkpointing none it would fit at"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--seq-len", "8192", "--micro-batch", "16"), NO_PLAN, ["without --micro-batch 16 it would fit at"]),
    (("llama-3.1-8b", "--gpus", "1xRTX4090@1GiB"), NO_PLAN, ["the smallest needs", "of 1.00 GiB"]),
    (("llama-3.1-405b", "--gpus", "8xH100-80GB"), NO_PLAN, ["the smallest needs", "of 79.10 GiB", "with --allow method:qlora it would fit at"]),
    (("llama-3.1-405b", "--gpus", "2xH100-80GB"), NO_PLAN, ["the smallest needs", "of 79.10 GiB", "32x8xH100-80GB would do"]),
]


class Wishes(unittest.TestCase):
    def test_each_names_what_conflicts(self):
        self.assertGreaterEqual(len(WISHES), 15)
        for arguments, code, words in WISHES:
            with self.subTest(" ".join(arguments)):
                done = subprocess.run([os.path.join(BIN, "vramfit"), "plan", *arguments], capture_output=True, text=True, check=False, timeout=600)
                self.assertEqual(done.returncode, code, done.stderr + done.stdout)
                said = done.stdout.split("\n\n")[0] if code == NO_PLAN else done.stderr
                for word in words:
                    self.assertIn(word, said)
                self.assertEqual(len(said.strip().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
