"""Wishes that contradict each other, or that no plan can fulfil: one explanation that names what conflicts and the right exit code."""

import os
import subprocess
import unittest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
H100S = ("llama-3.1-8b", "--gpus", "8xH100-80GB")
USAGE, NO_PLAN, CONFLICT = 2, 4, "4, and no answer"

# Model, cluster and flags; the exit code; words of the explanation.
WISHES = [
    ((*H100S, "--global-batch", "7"), CONFLICT, ["--global-batch 7", "8 data ranks"]),
    ((*H100S, "--micro-batch", "4", "--grad-accum", "3", "--global-batch", "13"), CONFLICT, ["--global-batch 13", "8 data ranks"]),
    ((*H100S, "--micro-batch", "4", "--grad-accum", "3", "--global-batch", "64"), CONFLICT, ["--global-batch 64", "--micro-batch 4", "--grad-accum 3"]),
    ((*H100S, "--micro-batch", "4", "--global-batch", "8"), CONFLICT, ["--global-batch 8", "--micro-batch 4"]),
    ((*H100S, "--grad-accum", "5", "--global-batch", "16"), CONFLICT, ["--global-batch 16", "--grad-accum 5"]),
    ((*H100S, "--sharding", "hybrid-shard", "--mesh", "replicate=3,shard=2"), CONFLICT, ["--mesh replicate=3,shard=2", "6 ranks", "8 cards"]),
    ((*H100S, "--sharding", "full-shard", "--mesh", "replicate=8,shard=1"), CONFLICT, ["--mesh replicate=8,shard=1", "full-shard"]),
    ((*H100S, "--sharding", "no-shard", "--reshard", "always"), CONFLICT, ["--reshard", "--sharding no-shard"]),
    ((*H100S, "--reshard", "3"), CONFLICT, ["--reshard 3", "groups of 2, 4, 8"]),
    (("gpt2", "--gpus", "1xRTX4090", "--seq-len", "2048"), CONFLICT, ["--seq-len 2048", "1024 positions"]),
    (("llama-3.1-8b", "--gpus", "8xT4", "--precision", "bf16-pure"), CONFLICT, ["--precision bf16-pure", "T4"]),
    (("llama-3.1-8b", "--gpus", "8xV100-32GB", "--precision", "fp8"), CONFLICT, ["--precision fp8", "V100-32GB"]),
    (("gpt2", "--gpus", "1xL4", "--objective", "longest-sequence", "--seq-len", "512"), CONFLICT, ["--objective longest-sequence", "--seq-len"]),
    ((*H100S, "--sharding", "shard-grad-op", "--reshard", "3"), CONFLICT, ["--reshard", "--sharding shard-grad-op"]),
    ((*H100S, "--optimizer-in-backward", "on"), CONFLICT, ["--optimizer-in-backward on", "gradient clipping"]),
    ((*H100S, "--optimizer-in-backward", "on", "--no-clip", "--grad-accum", "4"), CONFLICT, ["--optimizer-in-backward on", "--grad-accum 4"]),
    ((*H100S, "--offload", "params", "--load", "rank0"), CONFLICT, ["--offload params", "--load rank0"]),
    ((*H100S, "--lora-rank", "4"), CONFLICT, ["--lora-rank", "--method full"]),
    ((*H100S, "--quantization", "nf4"), CONFLICT, ["--quantization nf4", "no matrix of a layer is frozen"]),
    ((*H100S, "--freeze", "layers:0-99"), CONFLICT, ["--freeze layers:0-99", "layers 0 to 31"]),
    ((*H100S, "--allow", "quantization"), CONFLICT, ["--allow quantization", "--method lora"]),
    ((*H100S, "--allow", "global-batch"), CONFLICT, ["--allow global-batch", "8 data ranks"]),
    ((*H100S, "--allow", "global-batch:12"), CONFLICT, ["--global-batch 12", "8 data ranks"]),
    ((*H100S, "--allow", "precision:bf16-pure", "--gpus", "8xT4"), USAGE, ["--gpus"]),
    ((*H100S, "--network", "10Gbps/card"), CONFLICT, ["--network", "one node"]),
    (("gpt2", "--gpus", "auto:L4", "--objective", "cost"), CONFLICT, ["--objective cost", "--gpus auto:"]),
    (("gpt2", "--gpus", "2xcpu-4GiB", "--verify", "phantom"), CONFLICT, ["--verify phantom", "2xcpu-4GiB"]),
    # Plain usage: one flag is wrong by itself.
    ((*H100S, "--micro-bach", "2"), USAGE, ["--micro-bach"]),
    ((*H100S, "--seq-len", "none"), USAGE, ["none"]),
    (("llama-3.1-8b", "--gpus", "8xH100-90GB"), USAGE, ["H100-90GB"]),
    ((*H100S, "--method", "lora", "--lora-targets", "nothing"), USAGE, ["--lora-targets nothing"]),
    ((*H100S, "--allow", "precison"), USAGE, ["precison"]),
    ((*H100S, "--price", "2/h"), USAGE, ["--price"]),
    ((*H100S, "--objective", "speed"), USAGE, ["speed"]),
    (("llama-3.1-70b", "--gpus", "8xRTX4090", "--sharding", "no-shard"), NO_PLAN, ["the smallest needs", "of the card's 23.52 GiB", "with --sharding no-shard"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--sharding", "no-shard"), NO_PLAN, ["without --sharding no-shard "]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--checkpointing", "none", "--seq-len", "8192"), NO_PLAN, ["without --checkpointing none "]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--seq-len", "8192", "--micro-batch", "16"), NO_PLAN, ["without --micro-batch 16 "]),
    (("llama-3.1-8b", "--gpus", "1xRTX4090@1GiB"), NO_PLAN, ["the smallest needs", "of the card's 1.00 GiB"]),
    (("llama-3.1-405b", "--gpus", "8xH100-80GB"), NO_PLAN, ["the smallest needs", "of the card's 79.10 GiB", "  --allow method:qlora "]),
    (("llama-3.1-405b", "--gpus", "2xH100-80GB"), NO_PLAN, ["the smallest needs", "of the card's 79.10 GiB", "  --gpus 32x8xH100-80GB "]),
]


class Wishes(unittest.TestCase):
    def test_each_names_what_conflicts(self):
        self.assertGreaterEqual(len(WISHES), 15)
        for arguments, code, words in WISHES:
            with self.subTest(" ".join(arguments)):
                done = subprocess.run([os.path.join(BIN, "vramfit"), "plan", *arguments], capture_output=True, text=True, check=False, timeout=600)
                self.assertEqual(done.returncode, NO_PLAN if code == CONFLICT else code, done.stderr + done.stdout)
                self.assertEqual(done.stdout == "", code != NO_PLAN)
                for word in words:
                    self.assertIn(word, done.stdout if code == NO_PLAN else done.stderr)
                lines = (done.stdout.split("\n\n")[0] if code == NO_PLAN else done.stderr).strip().splitlines()
                self.assertEqual([line.split(": ")[0] for line in lines[1:]], ["The closest"] if code == NO_PLAN else [])

    def test_a_job_that_contradicts_itself_is_a_usage_error_of_other_commands(self):
        for command in ("estimate", "run"):
            done = subprocess.run([os.path.join(BIN, "vramfit"), command, *H100S, "--global-batch", "7"], capture_output=True, text=True, check=False, timeout=600)
            self.assertEqual((done.returncode, done.stdout), (USAGE, ""), done.stderr)
            self.assertIn("--global-batch 7: can't be divided by 8 data ranks", done.stderr)


if __name__ == "__main__":
    unittest.main()
