"""Plans hold on phantom GPUs: what is given runs without running out or retries, and reserves what was predicted; the next larger micro-batch,
which the planner said doesn't fit, runs out.

Without arguments every third pair is tried, as all take minutes of processor time; `all` tries them all and prints the table of docs/planner.md."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "run"))
import train_forks  # noqa: E402

BIN = train_forks.Programs(phantoms=True).folder
TOLERANCE = 0.01  # of reserved memory
EVERY = 3  # a pair in so many is tried in CI

# Model, cluster, sequence length, global batch (None: left open).
PAIRS = [
    ("gpt2", "1xRTX3090", 1024, 32),
    ("gpt2-medium", "1xRTX4090", 1024, 64),
    ("gpt2-large", "2xRTX4090", 1024, 64),
    ("gpt2-xl", "4xRTX4090", 1024, 128),
    ("bert-base-uncased", "1xL4", 512, 64),
    ("bert-large-cased", "2xRTX4090", 512, 256),
    ("falcon3-1b", "2xRTX4090", 2048, 16),
    ("gemma-2-9b", "8xA100-80GB", 4096, 32),
    ("gemma-2-27b", "8xH200", 4096, 32),
    ("gemma-3-4b", "4xL40S", 4096, 16),
    ("gemma-3-12b", "8xA100-80GB", 4096, 32),
    ("gemma-3-27b", "8xH100-80GB", 4096, None),
    ("granite-3.0-8b-instruct", "4xH200", 4096, 64),
    ("deepseek-r1-distill-qwen-32b", "2x8xH100-80GB", 4096, 64),
    ("qwen3-14b", "8xRTX-PRO-6000-96GB", 4096, 32),
    ("smollm2-360m", "1xRTX4090", 4096, 16),
    ("smollm2-1.7b", "2xL40S", 4096, 16),
    ("tinyllama-1.1b", "1xA100-40GB", 2048, 32),
    ("open-llama-3b", "4xRTX4090", 2048, None),
    ("llama-7b", "4xA100-80GB", 2048, 64),
    ("llama-13b", "8xA100-80GB", 2048, 64),
    ("llama-2-7b", "8xRTX4090", 4096, 16),
    ("llama-2-13b", "8xL40S", 4096, None),
    ("llama-2-70b", "4x8xA100-80GB", 4096, 64),
    ("llama-3-8b", "4xA100-40GB", 4096, None),
    ("llama-3-70b", "4x8xH100-80GB", 8192, 128),
    ("llama-3.1-8b", "1xH200", 2048, 8),
    ("llama-3.1-8b", "8xH100-80GB", 8192, 64),
    ("llama-3.1-8b", "16x8xH100-80GB", 8192, 512),
    ("llama-3.1-70b", "8xB200", 4096, 32),
    ("llama-3.1-70b", "2x8xH200", 8192, 128),
    ("llama-3.1-70b", "8x8xH100-80GB", 8192, None),
    ("llama-3.1-405b", "64x8xH100-80GB", 8192, 1024),
    ("llama-3.1-405b", "32x8xH200", 4096, 512),
    ("llama-3.2-1b", "1xRTX4090", 4096, 16),
    ("llama-3.2-1b", "8xL4", 4096, 64),
    ("llama-3.2-3b", "4xRTX4090", 4096, 16),
    ("llama-3.2-3b", "2xH100-80GB", 8192, 32),
    ("codellama-34b", "8xH200", 4096, 32),
    ("mistral-7b-v0.3", "8xA100-40GB", 4096, 32),
    ("mistral-nemo", "8xH100-80GB", 4096, 64),
    ("mistral-large", "8x8xH100-80GB", 4096, 128),
    ("qwen2-0.5b", "1xRTX4090", 2048, 16),
    ("qwen2-1.5b", "2xRTX3090", 2048, None),
    ("qwen2-7b", "8xL40S", 4096, 32),
    ("qwen2.5-14b", "8xA100-80GB", 4096, 32),
    ("qwen2.5-32b", "8xH200", 4096, 64),
    ("qwen2.5-72b", "4x8xA100-80GB", 4096, 128),
    ("qwen3-0.6b", "1xRTX4090", 4096, 16),
    ("qwen3-4b", "4xL40S", 4096, None),
    ("qwen3-8b", "4xH100-80GB", 4096, 32),
    ("qwen3-32b", "8xB200", 4096, 64),
    ("gemma-2b", "2xA100-40GB", 2048, 16),
    ("gemma-7b", "8xA100-40GB", 2048, 32),
    ("gemma-2-2b", "2xH100-80GB", 2048, 32),
    ("gemma-3-1b", "1xA100-40GB", 2048, 16),
    ("phi-3-mini-4k", "4xA100-40GB", 4096, 32),
    ("phi-4", "8xA100-80GB", 4096, 32),
    ("falcon3-7b", "4xH100-80GB", 4096, 32),
    ("granite-3.3-8b-instruct", "8xA100-40GB", 4096, 32),
]


def vramfit(*arguments):
    return subprocess.run([os.path.join(BIN, "vramfit"), *arguments], capture_output=True, text=True, check=False, timeout=300)


def plan_of(model, gpus, sequence, batch):
    flags = ["--seq-len", str(sequence)] + ([] if batch is None else ["--global-batch", str(batch)])
    return vramfit("plan", model, "--gpus", gpus, *flags, "--verify", "phantom:1", "--json")


def larger_micro_batch(job):
    """The job with the next larger micro-batch that divides a rank's rows, or with one row more where no batch is left to accumulate."""
    rows = job["micro_batch"] * job["grad_accum"]
    following = next((n for n in range(job["micro_batch"] + 1, rows + 1) if rows % n == 0), job["micro_batch"] + 1)
    ranks = job["global_batch"] // rows
    accumulation = max(1, rows // following)
    return {**job, "micro_batch": following, "grad_accum": accumulation, "global_batch": following * accumulation * ranks}


class Tried:
    """A pair: its plan, and what came of the next larger micro-batch."""

    def __init__(self, pair, folder):
        begin = time.monotonic()
        self.pair = pair
        self.answer = plan_of(*pair)
        self.plan = json.loads(self.answer.stdout) if self.answer.stdout else {}
        self.larger_verdict, self.larger_exit = None, None
        if "rehearsal" in self.plan:
            self.try_larger(os.path.join(folder, "job.json"))
        self.seconds = time.monotonic() - begin

    def try_larger(self, path):
        job = larger_micro_batch(self.plan["job"])
        with open(path, "w", encoding="utf-8") as file:
            json.dump(job, file)
        model, gpus = self.pair[:2]
        estimate = vramfit("estimate", model, "--gpus", gpus, "--job", path, "--json")
        self.larger_verdict = json.loads(estimate.stdout)["verdict"]
        if self.larger_verdict == "does_not_fit":
            self.larger_exit = vramfit("run", model, "--gpus", gpus, "--job", path, "--device", "phantom", "--steps", "2").returncode

    def error(self):
        rehearsal = self.plan["rehearsal"]
        return rehearsal["predicted_reserved_bytes"] / rehearsal["reserved_bytes"] - 1

    def row(self):
        model, gpus, sequence, batch = self.pair
        job, rehearsal = self.plan["job"], self.plan["rehearsal"]
        larger = {None: "", 0: "runs", 6: "runs out"}[self.larger_exit] or self.larger_verdict.replace("_", " ")
        return (f"| {model} | {gpus} | {sequence} | {batch or 'open'} | {job['micro_batch']} x {job['grad_accum']} | "
                f"{rehearsal['predicted_reserved_bytes'] / 2**30:.3f} | {rehearsal['reserved_bytes'] / 2**30:.3f} | {larger} |")


class RehearsedPlans(unittest.TestCase):
    pairs = PAIRS[::EVERY]
    least_that_run_out = 7  # of these pairs
    prints = False

    def test_plans_run_as_predicted_and_the_next_larger_micro_batch_runs_out(self):
        self.assertEqual(len(PAIRS), 60)
        tried = []
        with tempfile.TemporaryDirectory(prefix="vramfit-plans-") as folder:
            for pair in self.pairs:
                with self.subTest(pair=pair):
                    result = Tried(pair, folder)
                    self.assertEqual(result.answer.returncode, 0, result.answer.stderr)
                    self.assertNotIn("rejected", result.plan)
                    self.assertLessEqual(abs(result.error()), TOLERANCE)
                    self.assertIn(result.larger_exit, (None, 6))
                    tried.append(result)
                    if self.prints:
                        print(result.row(), f"{result.seconds:.1f} s", flush=True)
        self.assertGreaterEqual(sum(result.larger_exit == 6 for result in tried), self.least_that_run_out)


if __name__ == "__main__":
    if sys.argv[1:] == ["all"]:
        sys.argv.pop()
        RehearsedPlans.pairs, RehearsedPlans.least_that_run_out, RehearsedPlans.prints = PAIRS, 20, True
    unittest.main()
