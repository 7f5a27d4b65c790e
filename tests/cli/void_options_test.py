"""No option is void: in each of these jobs a value changes something, is refused by name, or is said to change nothing.

options_test.py asks whether a value matters in some job; here a job is asked about each value that it may be given."""

import functools
import json
import os
import re
import unittest

from options_test import MODEL, SMALL, job_flags, program, values_of
from under_sanitizers import NARROW, SANITIZED

OWN = ("--stack", "vramfit")
ONE = (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512")
FOUR = (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512")
JOBS = [(*ONE, *OWN), (*ONE, *OWN, "--method", "qlora"), (*FOUR, *OWN),
        (MODEL, "--gpus", "2x2xH100-80GB", "--seq-len", "512", "--sharding", "hybrid-shard", *OWN),
        (MODEL, "--gpus", "4xA100-40GB", "--seq-len", "512", "--sharding", "no-shard", "--precision", "fp32", *OWN),
        (MODEL, "--gpus", "1xcpu-2GiB", "--seq-len", "256", *OWN),
        (*ONE, "--stack", "transformers"), (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "128", "--stack", "torchtitan")]

# What no estimate and no program shows, though it is something.
NUMBERS = {"--lora-alpha": "a factor", "--rslora": "a factor", "--loss-scale": "a factor, and when it changes", "--ignore-index": "labels are data",
           "--label-smoothing": "another loss", "--z-loss": "another loss"}
# A default, spelt out: what it resolves to in that job.
SPELT_OUT = {"--attention flash": "auto", "--attention efficient": "auto", "--attention cudnn": "auto", "--frozen-dtype bf16": "by --compute-dtype"}
# Refused by what follows from it.
FOLLOWS = {"--global-batch": "--grad-accum"}
# It would change something if the job had a block that large.
TOO_SMALL = {"--allocator max_split_size_mb=64"}

# Jobs of a plan with what else --allow is given, so that the kinds have something to do.
PLANS = [(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", *NARROW, *OWN), (MODEL, "--gpus", "1xcpu-2GiB", "--seq-len", "256", *NARROW, *OWN),
         (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--optimizer", "sgd", *NARROW, *OWN),
         (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--stack", "transformers"), (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--stack", "transformers"),
         (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--stack", "trl", "--method", "lora"), (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--stack", "torchtitan")]
KINDS = ("kernels", "frozen-dtype", "gradient-dtype", "precision", "optimizer", "global-batch", "quantization", "method", "seq-len")
LAST_RESORTS = ("quantization", "method", "seq-len")  # searched where nothing else fits
NUMBERS_OF_KINDS = {"global-batch": ["1", "8", "6"], "seq-len": ["64", "512", "1024"]}

# Refused, with what is nearest; which is accepted.
NEAREST = [
    ((*FOUR, *OWN, "--state-dtype", "fp16"), "--state-dtype bf16"),
    ((*FOUR, *OWN, "--gradient-dtype", "bf16", "--optimizer", "adamw:foreach"), "--optimizer adamw:fused"),
    ((*FOUR, "--stack", "transformers", "--gradient-dtype", "bf16"), "--stack vramfit"),
    ((*ONE, "--stack", "transformers", "--optimizer", "adamw-4bit"), "--optimizer adamw-4bit:torchao"),
    ((*ONE, "--stack", "transformers", "--optimizer", "lion"), "--optimizer adamw-8bit"),
    ((*ONE, "--stack", "transformers", "--optimizer", "sgd"), "--optimizer adamw-8bit"),
    ((*ONE, "--stack", "transformers", "--optimizer", "adamw:loop"), "--optimizer adamw:fused"),
    ((*FOUR, "--stack", "transformers", "--optimizer", "adamw-4bit"), "--optimizer adamw"),
    ((*FOUR, "--stack", "transformers", "--optimizer", "lion"), "--optimizer adamw"),
    ((*ONE, "--stack", "transformers", "--offload", "optimizer"), "--runtime deepspeed"),
    ((*ONE, "--stack", "transformers", "--offload", "activations"), "--stack vramfit"),
    ((*FOUR, "--stack", "transformers", "--offload", "optimizer"), "--offload params"),
    ((*FOUR, "--stack", "transformers", "--sharding", "no-shard", "--offload", "optimizer"), "--runtime deepspeed"),
    ((*ONE, "--stack", "transformers", "--quantization", "nf4"), "--method qlora"),
    ((*ONE, "--stack", "transformers", "--checkpointing", "budget:40%"), "--stack vramfit"),
    ((*FOUR, "--stack", "transformers", "--checkpointing", "selective"), "--stack vramfit"),
    ((*ONE, "--stack", "transformers", "--label-smoothing", "0.1"), "--stack vramfit"),
    ((*FOUR, "--stack", "transformers", "--z-loss", "1e-4"), "--stack vramfit"),
    ((*ONE, "--stack", "transformers", "--kernels", "vramfit"), "--stack vramfit"),
    ((*ONE, "--stack", "vramfit", "--kernels", "liger"), "--stack transformers"),
    ((*ONE, "--stack", "trl", "--method", "lora", "--kernels", "axolotl"), "--stack transformers"),
    ((*ONE, "--stack", "transformers", "--optimizer-in-backward", "on", "--no-clip"), "--stack vramfit"),
    ((*FOUR, "--stack", "deepspeed", "--method", "lora", "--dora", "on"), "--stack transformers"),
    ((*ONE, "--stack", "transformers", "--freeze", "embeddings"), "--stack vramfit"),
    ((*ONE, "--stack", "transformers", "--gradient-mask", "keep:0.5"), "--stack vramfit"),
    ((*ONE, "--stack", "transformers", "--precision", "fp8"), "--precision bf16-mixed"),
    ((*ONE, "--stack", "transformers", "--allocator", "arena"), "--allocator expandable"),
    ((*ONE, "--stack", "transformers", "--allocator", "gradients-first"), "--allocator expandable"),
    ((*ONE, "--stack", "accelerate", "--optimizer", "lion"), "--optimizer adamw-8bit"),
    ((*ONE, "--stack", "transformers", "--compute-dtype", "fp32"), "--precision fp32"),
    ((*FOUR, "--stack", "transformers", "--compute-dtype", "fp32"), "--precision fp32"),
    ((*FOUR, "--stack", "trl", "--compute-dtype", "fp16"), "--precision fp16-mixed"),
    ((*FOUR, "--stack", "deepspeed", "--compute-dtype", "fp16"), "--precision fp16-mixed"),
    ((*FOUR, "--stack", "torchtune", "--compute-dtype", "fp32"), "--precision fp32"),
    ((*FOUR, "--stack", "torchtune", "--sharding", "no-shard"), "--sharding full-shard"),
    ((*FOUR, "--stack", "torchtitan", "--sharding", "no-shard"), "--sharding full-shard"),
    ((*FOUR, "--stack", "torchtitan", "--offload", "optimizer"), "--stack vramfit"),
    ((*FOUR, "--stack", "torchtitan", "--method", "lora"), "--stack transformers"),
    ((*FOUR, "--stack", "torchtitan", "--optimizer", "adamw-8bit"), "--optimizer adamw"),
    ((*FOUR, "--stack", "torchtitan", "--precision", "bf16-pure"), "--precision bf16-mixed"),
    ((*FOUR, "--stack", "torchtitan", "--checkpointing", "budget:40%"), "--checkpointing full"),
    ((*FOUR, "--stack", "torchtitan", "--reshard", "last-kept"), "--reshard default"),
    ((*FOUR, "--stack", "torchtitan", "--wrap", "layers:2"), "--wrap layer"),
    ((*FOUR, "--runtime", "pytorch-fsdp2", "--modeling", "torchtitan", "--attention", "flash", "--grad-accum", "2"), "--grad-accum 1"),
    ((*ONE, "--stack", "torchtitan"), "--stack transformers"),
    ((*FOUR, "--stack", "torchtitan", "--compile", "on"), "--compile off"),
    ((MODEL, "--gpus", "1xT4", "--stack", "torchtune"), "--stack transformers"),
    ((MODEL, "--gpus", "1xT4", *OWN, "--attention", "flash"), "--attention auto"),
]


@functools.cache
def estimate_of(*words):
    """What it says of the job, the job, and what it assumes; None where it is refused; and the refusal."""
    done = program("estimate", *words, "--json")
    if done.returncode not in (0, 3):
        return None, done.stderr + done.stdout
    document = json.loads(done.stdout)
    return ([document[key] for key in ("verdict", "ranks", "host_bytes", "why")], document["job"], document["assumptions"]), ""


@functools.cache
def program_of(*words):
    return program("program", *words).stdout


def is_void(job, flag, value):
    """Whether it is accepted, isn't the default, and nothing tells what it does."""
    (base, fields, _), _ = estimate_of(*job)
    said, refusal = estimate_of(*job, f"{flag}={value}")
    if said is None:
        return flag not in refusal and FOLLOWS.get(flag, flag) not in refusal
    answer, with_value, assumptions = said
    name = flag.strip("-").replace("-", "_")
    if answer != base or with_value.get(name) == fields.get(name):
        return False
    if any(line.startswith(f"{flag} ") and " changes nothing: " in line for line in assumptions):
        return False
    if flag in NUMBERS or f"{flag} {value}" in {**SPELT_OUT, **dict.fromkeys(TOO_SMALL)}:
        return False
    return program_of(*job) == program_of(*job, f"{flag}={value}")


def plan_of(*words):
    """Its exit code, what it says but for the time it took, and its assumptions or its refusal."""
    done = program("plan", *words, "--json")
    document = json.loads(done.stdout) if done.stdout else {"search": {}}
    document["search"].pop("seconds", None)
    notes = document.pop("assumptions", [])
    return done.returncode, document, notes or done.stderr + document.get("why", "")


class Values(unittest.TestCase):
    @unittest.skipIf(SANITIZED, "a thousand estimates of small jobs that other tests have, too (docs/testing.md)")
    def test_each_value_in_each_job_changes_it_or_is_refused_or_said_to_change_nothing(self):
        for job in JOBS:
            for flag, listed in job_flags().items():
                if flag in job:
                    continue
                for value in values_of(flag, listed):
                    if flag in ("--runtime", "--modeling"):
                        continue  # contradict the stack
                    self.assertFalse(is_void(job, flag, value), (job, flag, value))

    def said(self, flags, line, *command):
        document = json.loads(program(*command, *flags, "--json").stdout)
        self.assertIn(line, document.get("assumptions", []))

    def test_what_one_gpu_or_a_step_of_one_micro_batch_has_no_use_for_is_said_in_estimate_and_plan(self):
        for flags, why in ((("--reshard", "always"), "on one GPU nothing is sharded"), (("--load", "rank0"), "on one GPU nothing is sharded"),
                           (("--reduce-finish", "end"), "on one GPU nothing is reduced"), (("--bucket-bytes", "1024"), "there are no replicas"),
                           (("--output-dtype", "fp32"), "the loss reads logits as fp32 in any case, block by block"),
                           (("--accumulate", "unsharded"), "without --grad-accum nothing is added up")):
            line = f"{' '.join(flags)} changes nothing: {why}"
            self.said(flags, line, "estimate", *ONE, *OWN)
            self.said(flags, line, "plan", *ONE, *NARROW)
        self.said(("--reshard", "always", "--optimizer-in-backward", "on", "--no-clip"), "--reshard always changes nothing: on one GPU nothing is sharded", "plan", *ONE, *NARROW)
        self.said(("--sharding", "hybrid-shard"), "--sharding hybrid-shard changes nothing: there are no replicas (--mesh replicate=2)", "estimate", *FOUR, *OWN)
        self.said(("--set", "deterministic=on"), "--deterministic on changes nothing: kernels for CPU ranks always are", "estimate", MODEL, "--gpus", "1xcpu-2GiB")
        for flags in (("--reshard", "never"), ("--load", "rank0"), ("--accumulate", "unsharded", "--grad-accum", "2")):
            self.assertNotIn("changes nothing", program("estimate", SMALL, "--gpus", "8xH100-80GB", "--seq-len", "128", "--wrap-embeddings", "off", *flags, *OWN).stdout)

    def refused(self, words, *said, code=2):
        done = program(*words)
        self.assertEqual((done.returncode, done.stdout), (code, ""), (words, done.stderr))
        for each in said:
            self.assertIn(each, done.stderr)

    def test_qlora_without_codes_is_refused_by_every_command(self):
        flags = ("--method", "qlora", "--quantization", "none")
        self.refused(("estimate", *ONE, *flags), "--method qlora with --quantization none")
        self.refused(("plan", *ONE, *flags), "--method qlora with --quantization none", code=4)
        self.refused(("run", MODEL, "--gpus", "1xcpu-2GiB", *flags), "--method qlora with --quantization none")
        self.refused(("estimate", *ONE, "--quantization", "none", "--what-if", "method=qlora"), "--what-if method=qlora: --method qlora with --quantization none")

    def test_kinds_of_ops_that_no_layer_has_are_refused_with_those_that_it_has(self):
        for kinds in ("embedding", "layer_norm", "lora,embedding"):
            said = ("layers of this model have no " + kinds.split(",")[0], "they have add, attention, glu, linear, rms_norm, rope")
            self.refused(("estimate", *ONE, "--checkpointing", f"selective:{kinds}"), *said)
            self.refused(("plan", *ONE, "--checkpointing", f"selective:{kinds}"), *said, code=4)
        gpt2 = (MODEL.replace("llama", "gpt2"), "--gpus", "1xH100-80GB", "--seq-len", "64", *OWN)
        full = estimate_of(*gpt2, "--checkpointing", "full")[0]
        for kind in ("layer_norm", "activation", "attention", "linear", "add"):
            self.assertNotEqual(estimate_of(*gpt2, "--checkpointing", f"selective:{kind}")[0][0], full[0], kind)


class Allowed(unittest.TestCase):
    def values(self, kind):
        values = values_of(f"--{kind}", job_flags()[f"--{kind}"])
        return NUMBERS_OF_KINDS.get(kind) or [value for value in values if (kind, value) != ("quantization", "none")]

    @unittest.skipIf(SANITIZED, "two hundred plans of small jobs that other tests have, too (docs/testing.md)")
    def test_each_value_widens_the_search_or_is_refused_or_said_to_change_nothing(self):
        for job in PLANS:
            self.assertEqual(plan_of(*job)[0], 0, job)
            for kind in KINDS:
                self.walk(kind, self.on_a_small_card(job) if kind in LAST_RESORTS else job)

    def on_a_small_card(self, job):
        return tuple(word.replace("H100-80GB", "H100-80GB@0.5GiB").replace("cpu-2GiB", "cpu-0.001GiB") for word in job)

    def walk(self, kind, job):
        base = plan_of(*job)
        for allowed in (kind, *(f"{kind}:{value}" for value in self.values(kind))):
            code, document, notes = plan_of(*job, "--allow", allowed)
            if f"vramfit: --allow {allowed}: " in notes:
                self.assertEqual(code, 4, (job, allowed))
            else:  # a value that is said to change nothing is said here
                self.assertNotEqual((code, document, notes), base, (job, allowed))

    def test_a_kind_that_a_stack_lacks_is_refused_with_those_that_it_has(self):
        for stack, kind, others in (("torchtitan", "method", "global-batch:4, seq-len"), ("torchtitan", "kernels", "global-batch:4, seq-len"), ("transformers", "optimizer", "precision, global-batch:4, method, seq-len"),
                                    ("transformers", "kernels", "precision, global-batch:4, method, seq-len")):
            done = program("plan", MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--stack", stack, "--allow", kind)
            self.assertEqual((done.returncode, done.stdout), (4, ""), done.stderr)
            self.assertRegex(done.stderr, f"^vramfit: --allow {kind}: .*; kinds of change that this job may have: {re.escape(others)}\n$")


class Nearest(unittest.TestCase):
    def test_what_a_library_has_no_rules_for_is_refused_with_the_nearest_that_has_some(self):
        for words, nearest in NEAREST:
            done = program("estimate", *words)
            self.assertEqual(done.returncode, 1, (words, done.stdout, done.stderr))
            lacking = done.stdout.splitlines()[0].split("; your own script")[0].split("; this answers")[0]
            self.assertIn(nearest.split()[-1], lacking, words)
            self.assertEqual(program("estimate", *self.with_nearest(words, *nearest.split())).returncode, 0, (words, nearest))

    def test_it_is_refused_by_the_flag_that_was_given(self):
        for stack in ("transformers", "trl", "accelerate", "deepspeed", "torchtune", "torchtitan"):
            for dtype in ("fp32", "fp16"):
                said = program("estimate", *FOUR, "--stack", stack, "--compute-dtype", dtype).stdout
                self.assertRegex(said, rf"\ANOT MODELLED: --compute-dtype {dtype} \(")
        said = program("estimate", *FOUR, "--stack", "transformers", "--runtime", "pytorch-fsdp1", "--compute-dtype", "fp32").stdout
        self.assertRegex(said, r"\ANOT MODELLED: --compute-dtype fp32 \(")
        for stack in ("torchtune", "torchtitan"):
            self.assertRegex(program("estimate", *FOUR, "--stack", stack, "--sharding", "no-shard").stdout, r"\ANOT MODELLED: --sharding no-shard ")

    def with_nearest(self, words, flag, value):
        """The job with the nearest choice in place of what was refused; on another stack, itself."""
        refused = {"--method": "--quantization", "--runtime": "--stack", "--precision": "--compute-dtype"}.get(flag, flag)
        left = list(words)
        refused = flag if flag in left and refused not in left else refused
        at = left.index(refused)
        del left[at:at + 2]
        if flag == "--runtime":
            left += ["--modeling", "transformers"]
            if "--sharding" in left:
                del left[left.index("--sharding"):left.index("--sharding") + 2]
        return (*left, flag, value)


if __name__ == "__main__":
    unittest.main()
