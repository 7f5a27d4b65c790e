"""Every option of estimate, plan, run and rehearse: each value that is accepted changes something, or it is refused by name.

Options and values are read from the help, so one that is added without a row here fails."""

import functools
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest

from under_sanitizers import NARROW, SANITIZED

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
PROGRAM = os.path.join(BIN, "vramfit")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
SMALL = "HuggingFaceTB/SmolLM2-135M"
LARGE = "meta-llama/Llama-3.1-8B"

# Jobs in which a value may matter, tried in this order until one shows it. A job that sets a flag itself doesn't test it.
JOBS = [(MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", "--micro-batch", "2", "--grad-accum", "2"),
        (MODEL, "--gpus", "2x2xH100-80GB", "--seq-len", "512", "--grad-accum", "2"),
        (MODEL, "--gpus", "2x2xH100-80GB", "--micro-batch", "2", "--sharding", "hybrid-shard"),
        (MODEL, "--gpus", "4xA100-40GB", "--seq-len", "512", "--sharding", "no-shard", "--precision", "fp32"),
        (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", "--precision", "fp16-mixed"),
        (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", "--runtime", "pytorch-fsdp2", "--modeling", "torchtitan", "--attention", "flash"),
        (MODEL, "--gpus", "2xcpu-2GiB", "--seq-len", "256", "--sharding", "full-shard"),
        (SMALL, "--gpus", "8xH100-80GB", "--seq-len", "128"),
        (LARGE, "--gpus", "8xH100-80GB", "--seq-len", "512", "--checkpointing", "full"),
        (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", "--method", "lora"),
        (MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", "--no-clip"),
        (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--runtime", "pytorch", "--precision", "bf16-pure",
         "--attention", "flash"),
        (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--runtime", "pytorch", "--modeling", "transformers"),
        (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--runtime", "pytorch", "--modeling", "torchtune", "--precision", "bf16-pure"),
        (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--runtime", "pytorch-ddp", "--modeling", "transformers", "--checkpointing", "full"),
        (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--runtime", "pytorch-ddp", "--modeling", "transformers", "--method", "lora"),
        (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--runtime", "deepspeed", "--modeling", "transformers", "--sharding", "shard-grad-op"),
        (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "512", "--runtime", "deepspeed", "--modeling", "transformers", "--precision", "bf16-mixed"),
        (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--runtime", "pytorch", "--modeling", "trl"),
        (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "512", "--runtime", "pytorch", "--modeling", "trl-grpo", "--micro-batch", "2"),
        # Halves of pairs, each refused without the other.
        *((MODEL, "--gpus", "4xH100-80GB", "--seq-len", "512", *half) for half in (
            ("--modeling", "torchtitan", "--attention", "flash"), ("--runtime", "pytorch-fsdp2", "--attention", "flash"),
            ("--storage-dtype", "bf16"), ("--state-dtype", "bf16"), ("--freeze", "layers:0-1"), ("--freeze", "layers:0-1", "--precision", "bf16-pure")))]

# What stands for the capital letters of the help. One of them at least is not the default.
VALUES = {
    "--seq-len": ["64", "1024"], "--rotary-positions": ["2048"], "--micro-batch": ["1", "8"], "--grad-accum": ["1", "4"], "--global-batch": ["16", "32"],
    "--lora-rank": ["8", "16"], "--lora-alpha": ["16"], "--lora-dropout": ["0.1"], "--lora-targets": ["q_proj"], "--bucket-bytes": ["1024", "1048576"], "--zero3-sizes": ["auto", "param_persistence_threshold=0", "sub_group_size=1000,max_reuse_distance=0"], "--grpo": ["num_iterations=2", "steps_per_generation=4"], "--freeze": ["none", "embeddings", "layers:0-1", "*norm*"],
    "--mesh": ["replicate=1,shard=4", "replicate=2,shard=2", "replicate=4,shard=1"],
    "--loss-scale": ["1024", "dynamic", "dynamic:1024:7"], "--reshard": ["2"], "--wrap": ["size:100000", "pattern:model.layers.*"],
    "--checkpointing": ["every:2"], "--offload": ["activations:every:2"], "--loss": ["chunked:4", "chunked-forward:4"], "--label-smoothing": ["0.1"], "--z-loss": ["1e-4"], "--ignore-index": ["0"], "--allocator": ["max_split_size_mb=64", "backend:cudaMallocAsync"],
    "--kernels": ["libtorch", "vramfit", "liger", "liger:rope=off", "axolotl", "axolotl:o=off", "liger+axolotl"],
    "--prefetch": ["backward=pre", "backward=post", "backward=none", "forward=0", "forward=2", "limit=1"], "--gradient-mask": ["none", "keep:0.5"],
}

# Accepted, and no other estimate in any job. Each is held to be so.
SAME_ESTIMATE = {
    "--attention cudnn": "auto takes it wherever it is accepted",
    "--lora-alpha 16": "a factor; what it does is tested in tests/oracle/lora.py",
    "--rslora on": "as above",
    "--ignore-index 0": "leaves out labels, which are data: tests/executor/data, tests/oracle/loss_forms.py",
}


def program(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def help_of(command):
    """The help of each flag, as one line, by name; and the values that it lists."""
    text = subprocess.run([PROGRAM, "help", command], capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "COLUMNS": "100"}).stdout
    found = re.findall(r"^  (?:-\w, ?)?(--[-\w]+) ?(\S*)(.*(?:\n {10,}\S.*)*)", text, re.M)
    return {name: (values, " ".join(words.split())) for name, values, words in found if name != "--help"}


def job_flags():
    with open(os.path.join(SOURCE, "tests", "cli", "job_flags.txt"), encoding="utf-8") as file:
        return dict(line.split() for line in file)


def values_of(flag, listed):
    values = [] if "=" in listed else [part for part in listed.split("|") if not re.search(r"[A-Z[]", part)]
    return list(dict.fromkeys([*values, *VALUES.get(flag, [])]))


@functools.cache
def outcome(job, *set_to):
    """What an estimate says apart from the job that it repeats (None: there is none), that job's fields, and why."""
    names_library = any(word.startswith(("--runtime", "--modeling")) for word in (*job, *set_to))
    # One library for a flag and for its absence: without a name, a flag that the Trainer lacks would make it the engine's answer.
    done = program("estimate", *job, *set_to, *([] if names_library else ["--stack", "vramfit"]), "--json")
    document = json.loads(done.stdout or "{}")
    answer = [document[key] for key in ("verdict", "ranks", "host_bytes", "why")] if done.returncode in (0, 3) else None
    return answer, document.get("job", {}), document.get("why", done.stderr)


class JobFlags(unittest.TestCase):
    def test_each_value_is_read(self):
        for flag, listed in job_flags().items():
            for value in values_of(flag, listed):
                done = program("estimate", *JOBS[0], f"{flag}={value}", "--stack", "vramfit")
                self.assertIn(done.returncode, (0, 1, 2, 3), (flag, value, done.stderr))

    @unittest.skipIf(SANITIZED, "a thousand estimates, all of small jobs that other tests have, too (docs/testing.md)")
    def test_each_value_changes_an_estimate_or_is_refused_by_name(self):
        words = help_of("estimate")
        same, unsaid = set(), []
        for flag, listed in job_flags().items():
            values = values_of(flag, listed)
            self.assertTrue(values, f"{flag} {listed}: give values in VALUES")
            void, refused = self.walk(flag, values)
            same |= {f"{flag} {value}" for value in void}
            if "not modelled" not in words[flag][1].lower():
                unsaid += [f"{flag} {value}" for value in refused if value in listed or refused == values]
        self.assertEqual(unsaid, [], "always refused, and the help doesn't say so")
        self.assertEqual(same, set(SAME_ESTIMATE))

    def walk(self, flag, values):
        """Values that are accepted and change nothing in any job, and those that no job accepts."""
        left, accepted, field = list(values), set(), flag.strip("-").replace("-", "_")
        for job in JOBS:
            if flag in job or not left:
                continue
            base, base_fields, _ = outcome(job)
            for value in list(left):
                answer, fields, why = outcome(job, f"{flag}={value}")
                if answer is None:
                    self.assertTrue(base is None or flag in why, (job, flag, value, why))
                    continue
                accepted.add(value)
                is_default = fields.get(field) == base_fields.get(field)
                # The default changes something where another value does, or where the others are refused.
                if answer != base or (is_default and any(outcome(job, f"{flag}={other}")[0] != base for other in values)):
                    left.remove(value)
        return [value for value in left if value in accepted], [value for value in values if value not in accepted]


class EmptyValues(unittest.TestCase):
    """What an unset variable of the shell leaves: `run ... --save "$DIR"` would train on and save nothing."""

    def test_an_empty_value_is_refused_by_the_name_of_its_flag(self):
        for command in ("estimate", "plan", "run", "rehearse"):
            flags = [name for name, (values, _) in help_of(command).items() if values]
            self.assertGreater(len(flags), 6, command)
            for flag in flags:
                for words in ([flag, ""], [f"{flag}="]):
                    done = program(command, *words, "--", "true")
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (2, "", f"vramfit: {flag}: the value is empty\n"), (command, words))

    def test_an_empty_value_of_a_short_or_renamed_flag_and_an_empty_model_are_refused(self):
        for words, said in ((["plan", MODEL, "-o", ""], "-o: the value is empty"), (["estimate", MODEL, "--batch-size", ""], "--micro-batch: the value is empty"),
                            (["estimate", ""], "an argument is empty"), ([""], "an argument is empty")):
            done = program(*words)
            self.assertEqual((done.returncode, done.stdout, done.stderr.splitlines()[-1]), (2, "", f"vramfit: {said}"), words)


class Calibrate(unittest.TestCase):
    """What it measures is tested in tests/run/calibrate_test.py; here what it refuses before it starts a rank."""

    def refused(self, said, *flags):
        done = program("calibrate", *flags)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), (flags, done.stderr))
        self.assertIn(said, done.stderr)

    def test_what_says_nothing_of_a_machine_is_refused_by_name(self):
        self.refused("--gpus: missing")
        self.refused("--device phantom: nothing takes time on phantom GPUs", "--gpus", "2xH100-80GB", "--device", "phantom")
        self.refused("--device cpu: --gpus 2xH100-80GB asks for GPUs", "--gpus", "2xH100-80GB", "--device", "cpu")
        self.refused("--device cuda: --gpus 2xcpu-1GiB asks for CPU ranks", "--gpus", "2xcpu-1GiB", "--device", "cuda")
        self.refused("--device: ", "--gpus", "2xcpu-1GiB", "--device", "tpu")
        self.refused("one machine is measured", "--gpus", "2x8xH100-80GB")
        self.refused("--seconds: ", "--gpus", "1xcpu-1GiB", "--seconds", "0")
        self.refused("--seconds: ", "--gpus", "1xcpu-1GiB", "--seconds", "nan")
        self.refused("--threads: ", "--gpus", "1xcpu-1GiB", "--threads", "0")


class OtherFlags(unittest.TestCase):
    def different(self, *flags, base=(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64"), command="estimate"):
        one, other = program(command, *base), program(command, *base, *flags)
        self.assertNotIn(other.returncode, (1, 2, 5), other.stderr)
        self.assertNotEqual((one.returncode, one.stdout, one.stderr), (other.returncode, other.stdout, other.stderr), flags)

    def refused(self, name, *arguments, code=2):
        done = program(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), (arguments, done.stderr))
        self.assertIn(name, done.stderr)

    def known(self, command, tested):
        self.assertEqual(set(help_of(command)) - set(job_flags()), set(tested), f"flags of {command} without a test here")

    def test_of_estimate(self):
        self.known("estimate", ["--gpus", "--job", "--set", "--json", "--format", "--strict", "--no-clip", "--save-kind", "--network",
                                "--calibration", "--confidence", "--host-memory", "--stack", "--exact", "--rehearse", "--python", "--no-cache", "--keep-driver", "--what-if", "--at-peak"])
        for stack in values_of("--stack", help_of("estimate")["--stack"][0])[1:]:
            self.assertNotEqual(program("estimate", MODEL, "--gpus", "2xH100-80GB").stdout, program("estimate", MODEL, "--gpus", "2xH100-80GB", "--stack", stack).stdout)
        self.refused("--rehearse", "estimate", MODEL, "--gpus", "2xH100-80GB", "--rehearse", "always")  # the rest in tests/rehearse/stacks_test.py
        self.different("--set", "precision=fp32")
        self.different("--json")
        self.different("--format", "json")
        self.different("--no-clip")
        for kind in ("sharded", "full", "both"):
            self.different("--save-kind", kind)
        self.different("--save-kind", "adapters", base=(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", "--method", "lora"))
        self.refused("--save-adapters with --method full", "estimate", MODEL, "--gpus", "2xH100-80GB", "--save-kind", "adapters")
        self.refused("--save-kind", "estimate", MODEL, "--gpus", "2xH100-80GB", "--save-kind", "whole")
        self.assertEqual(program("estimate", MODEL, "--format", "accelerate").returncode, 0)
        for flags in (["--gpus", "2xH100-80GB"], ["--precision", "fp32"], ["--json"], ["--strict"], ["--no-clip"], ["--save-kind", "full"]):
            self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", *flags)
        self.refused("--strict", "estimate", MODEL, "--strict")
        self.different("--what-if", "seq_len=128", base=(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64"))
        self.assertRegex(program("estimate", MODEL, "--gpus", "1xH100-80GB", "--stack", "deepspeed", "--what-if", "offload=optimizer").stdout, r"\n    [\d.]+ GiB of host memory a node\n")
        self.refused("--what-if sequence=128", "estimate", MODEL, "--gpus", "2xH100-80GB", "--what-if", "sequence=128")
        for stack, other in (("trl-dpo", "vramfit"), ("trl", "trl-dpo")):
            self.refused(f"--what-if stack={other}: changes what is trained for", "estimate", MODEL, "--gpus", "2xH100-80GB", "--stack", stack, "--what-if", f"stack={other}")
        self.refused("--what-if: needs --gpus", "estimate", MODEL, "--what-if", "seq_len=128")
        self.different("--at-peak", base=(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64"))
        self.refused("--at-peak: needs --gpus", "estimate", MODEL, "--at-peak")
        self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", "--at-peak")
        for more in (["--what-if", "seq_len=128"], ["--at-peak"]):
            self.refused(f"{more[0]}: is for estimates", "estimate", MODEL, "--gpus", "2xH100-80GB", "--exact", "--stack", "trl", *more)
        self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", "--what-if", "seq_len=128")
        self.different("--network", "10Gbps/card", base=(MODEL, "--gpus", "2x1xH100-80GB", "--seq-len", "64"))
        offloaded = (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", "--offload", "optimizer")
        self.different("--host-memory", "1MiB", base=offloaded)
        self.assertEqual(program("estimate", *offloaded, "--host-memory", "1MiB").returncode, 3)
        self.refused("--host-memory", "estimate", *offloaded, "--host-memory", "much")
        self.refused("--host-memory: needs --gpus", "estimate", MODEL, "--host-memory", "64GiB")
        self.refused("--network", "estimate", MODEL, "--gpus", "2xH100-80GB", "--network", "10Gbps/card")
        for flag in ("--network", "--calibration"):
            self.refused(f"{flag}: needs --gpus", "estimate", MODEL, flag, "10Gbps/card")
            self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", flag, "10Gbps/card")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"precision": "fp32"}, file)
            self.different("--job", path)
            self.refused("figures: missing", "estimate", MODEL, "--gpus", "2xH100-80GB", "--calibration", path)
            figures = os.path.join(folder, "figures.json")
            with open(figures, "w", encoding="utf-8") as file:
                json.dump({"figures": {"memory_share": [0.01, "measured"]}}, file)
            self.different("--calibration", figures)
            self.different("--calibration", figures, base=(MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64"), command="plan")
            self.refused("--calibration: is of one card", "plan", MODEL, "--gpus", "2xH100-80GB,1xL4", "--calibration", figures, code=4)
            others = os.path.join(folder, "others.json")
            with open(others, "w", encoding="utf-8") as file:
                json.dump({"name": "L4", "figures": {"memory_share": [0.01, "measured"]}}, file)
            self.refused("measured on L4, and this job is for H100-80GB", "estimate", MODEL, "--gpus", "2xH100-80GB", "--calibration", others)
            phantom = os.path.join(folder, "run.json")
            with open(phantom, "w", encoding="utf-8") as file:
                json.dump({"schema": "vramfit/run@1"}, file)
            self.refused("run.json: model: missing", "estimate", MODEL, "--gpus", "2xH100-80GB", "--calibration", figures, "--calibration", phantom)
            self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", "--job", path)

    def confidence(self, command, base):
        """The flag on a command that predicts memory."""
        def bound(*more):
            document = json.loads(program(command, *base, "--json", *more).stdout)
            return document.get("bound") or document["prediction"]["bound"]
        self.assertNotIn('"bound"', program(command, *base, "--json").stdout)
        most, less = bound("--confidence", "0.9"), bound("--confidence", "0.6")
        self.assertLess(less["reserved_margin"], most["reserved_margin"])
        self.assertTrue(all(kind["within"] == kind["cases"] for kind in most["cases"]), most)
        self.assertGreaterEqual(less["confidence"], 0.6)
        self.refused("--confidence 0.9999: the recorded cases support at most 0.", command, *base, "--confidence", "0.9999")
        for text in ("1", "0.4", "", "0.", "nan", "-0.9", "0.95e0", "0.12345", "90%"):
            self.refused("--confidence", command, *base, "--confidence=" + text)
        self.refused("--confidence 0.9: the bound of CPU ranks", command, *("1xcpu-4GiB" if word == "2xH100-80GB" else word for word in base), "--confidence", "0.9")

    def test_confidence_of_an_estimate(self):
        self.confidence("estimate", (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64"))
        self.different("--confidence", "0.6", base=(MODEL,), command="estimate")
        self.refused("--confidence: changes nothing in a rehearsal", "estimate", MODEL, "--gpus", "1xH100-80GB", "--stack", "trl", "--exact", "--confidence", "0.6")
        self.refused("--format accelerate", "estimate", MODEL, "--format", "accelerate", "--confidence", "0.6")

    def test_the_job_line_makes_the_same_estimate_again(self):
        def figures(text):  # without what other libraries need, which is asked only where --stack names one
            return [line for line in text.split("\nAssumptions:")[0].splitlines() if "for your own script" not in line]
        lora = ("--method", "lora", "--save-kind", "adapters")
        for stack, *flags in (["vramfit", "--no-clip"], ["vramfit", "--save-kind", "full"], ["vramfit", "--no-clip", "--save-kind", "both"],
                              ["vramfit", "--save-kind", "sharded"], ["vramfit", *lora], ["transformers", "--no-clip"], ["torchtune", "--no-clip"],
                              ["vramfit", "--deterministic"], ["vramfit"],
                              ["trl", "--checkpointing", "none"], ["trl", "--runtime", "pytorch-fsdp1"], ["trl-dpo", "--sharding", "no-shard"], ["accelerate", "--optimizer", "adamw"],
                              ["torchtitan", "--allocator", "native"], ["deepspeed"]):
            with self.subTest(f"{stack} {flags}"):
                typed = (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", "--stack", stack, *flags)
                first = program("estimate", *typed).stdout
                line = re.search(r"^Job: (.*)$", first, re.M)[1]
                again = program("estimate", MODEL, "--gpus", "2xH100-80GB", *shlex.split(line))
                self.assertTrue(line.startswith(f"--stack {stack}" if stack != "vramfit" else "--runtime vramfit"), line)
                self.assertEqual(figures(again.stdout), figures(first), again.stderr)
                answer = json.loads(program("estimate", *typed, "--json").stdout)
                self.assertEqual(answer["clip"], "--no-clip" not in flags)
                self.assertEqual(answer["save_kind"], flags[flags.index("--save-kind") + 1] if "--save-kind" in flags else "none")
        needs = program("estimate", MODEL, "--stack", "vramfit", "--no-clip", "--save-kind", "full")
        self.assertRegex(needs.stdout, r"\nJob: .* --no-clip --save-kind full\n")

    def test_strict_changes_what_at_risk_exits_with(self):
        base = [LARGE, "--gpus", "8xH100-80GB", "--seq-len", "512", "--json"]
        estimate = json.loads(program("estimate", *base).stdout)
        worst = estimate["ranks"][estimate["worst"]]
        between = (worst["total_bytes"] + worst["upper_bound_bytes"]) // 2
        base[2] = f"8xH100-80GB@{between / 2**30:.3f}GiB"
        self.different("--strict", base=base)
        self.assertEqual(program("estimate", *base, "--strict").returncode, 3)

    def test_of_plan(self):
        self.known("plan", ["--gpus", "--host-memory", "--stack", "--job", "--set", "--allow", "--network", "--objective", "--largest-model", "--tokens", "--price", "--verify", "--output", "--json", "--no-clip", "--calibration", "--confidence"])
        self.confidence("plan", (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", *NARROW))
        base = (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64", *NARROW)
        self.different("--network", "10Gbps/card", base=(MODEL, "--gpus", "2x1xH100-80GB", *base[3:]), command="plan")
        self.refused("--network", "plan", *base, "--network", "10Gbps/card", code=4)
        self.different("--host-memory", "64GiB", base=(MODEL, "--gpus", "1x24GB", "--seq-len", "64"), command="plan")
        cards = (MODEL, "--gpus", "1xL4,1xH100-80GB,2xH100-80GB", "--precision", "bf16-mixed", *NARROW)
        for objective in ("cost", "fewest-gpus", "longest-sequence", "largest-batch", "headroom"):
            self.different("--objective", objective, base=cards, command="plan")
        self.refused("--objective", "plan", *base, "--objective", "speed")
        self.different("--tokens", "3B", base=base, command="plan")
        family = ["plan", "--largest-model", "gpt2", "--gpus", "1xL4", "--seq-len", "128", *NARROW]
        self.assertIn("gpt2-large on 1xL4", program(*family).stdout)
        self.refused("--largest-model", *family, MODEL)
        self.refused("--largest-model", "plan", "--largest-model", "lama", "--gpus", "1xL4")
        self.different("--price", "2.5/h", base=(*cards, "--tokens", "1B"), command="plan")
        self.assertRegex(program("plan", *base, "--tokens", "1B", "--price", "2.5/h").stdout, r" GPU hours, [\d.]+ in the currency of --price \(2.50 per GPU and hour: set by --price\)\n")
        self.refused("--price", "plan", *base, "--price", "2.5/h")
        if os.path.exists(os.path.join(BIN, "vramfit-train")):
            self.different("--verify", "phantom", base=base, command="plan")
        else:  # sanitizer builds have no phantom GPUs
            self.assertIn("VRAMFIT_PHANTOM", program("plan", *base, "--verify", "phantom").stderr)
        self.refused("--verify", "plan", *base, "--verify", "gpus")
        self.different("--json", base=base, command="plan")
        self.different("--no-clip", base=base, command="plan")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.json")
            self.different("-o", path, base=base, command="plan")
            self.assertTrue(os.path.exists(path))

    def test_what_plan_is_allowed_widens_the_search_or_is_refused_by_name(self):
        cards = ["plan", SMALL, "--gpus", "2xH100-80GB@2.6GiB", "--seq-len", "1024", "--wrap", "layer", "--prefetch", "backward=post", "--load", "each"]
        one, other = program(*cards), program(*cards, "--allow", "precision:bf16-pure")
        self.assertEqual((one.returncode, other.returncode), (4, 0), other.stderr)
        self.assertEqual(program(*cards, "--allow", "precision").stdout.splitlines()[1], other.stdout.splitlines()[1])
        self.assertIn("configurations with --allow kernels:vramfit,precision:bf16-pure,optimizer:adamw-8bit;", program(*cards, "--allow", "any").stdout)
        base = (*cards, "--precision", "bf16-mixed")
        self.refused("--allow quantization: all matrices of layers are trained", *base, "--allow", "quantization", code=4)
        self.refused('unknown value "4bit"', *base, "--allow", "quantization:4bit")
        self.refused("--allow global-batch: 2 is one sequence for each of 2 data ranks", *base, "--allow", "global-batch", code=4)
        cards = ["plan", SMALL, "--gpus", "2xH100-80GB@3.2GiB", "--precision", "bf16-mixed", "--seq-len", "4096", "--wrap", "layer", "--prefetch",
                 "backward=post", "--loss", "full", "--checkpointing", "none"]
        self.assertEqual(program(*cards).returncode, 4)
        self.assertIn("--seq-len 128 ", program(*cards, "--allow", "seq-len").stdout)
        self.assertIn("--seq-len 100 ", program(*cards, "--allow", "seq-len:100").stdout)
        self.assertEqual(program(*cards, "--allow", "optimizer", "--allow", "seq-len:100").stdout.splitlines()[:2], program(*cards, "--allow", "optimizer,seq-len:100").stdout.splitlines()[:2])
        self.refused("--allow any: takes no value", *base, "--allow", "any:thing")


if __name__ == "__main__":
    unittest.main()
