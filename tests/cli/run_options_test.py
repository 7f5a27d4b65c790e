"""Every option of run and rehearse: each value that is accepted changes something, or it is refused by name.

Options and values are read from the help, so one that is added without a row here fails."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

from options_test import MODEL, PROGRAM, help_of, job_flags

# What needs a broken machine, a clock or another optimizer to show: the test that has it.
ELSEWHERE = {"--threads": "tests/run/place.py", "--timeout": "tests/run/rank_failures_test.py",
             "--replan": "tests/run/replan_test.py", "--tune": "tests/run/tune_test.py",
             "--momentum": "tests/executor/ops/optimizers_test.cpp", "--no-clip": "tests/run/optimizer_in_backward_test.py"}

# Another value than the default, which gives other losses.
LOSSES = {"--steps": "2", "--lr": "0.05", "--warmup": "2", "--clip": "0.001", "--seed": "1", "--beta1": "0.5", "--beta2": "0.5", "--eps": "0.1",
          "--weight-decay": "10", "--token-bytes": "4"}

# Likewise, with --optimizer adafactor.
OF_ADAFACTOR = {"--beta2-decay": "0.1", "--eps1": "0.5", "--eps2": "1", "--update-clip": "1000"}

# Useless without another flag, and refused then.
COMPANIONS = {"--save-every": ["2"], "--keep": ["2"], "--trace-steps": ["1-2"], "--dump-gradients": ["1"], "--dump-logits": [], "--ranks": ["all"]}


def run(*arguments):
    return subprocess.run([PROGRAM, "run", *arguments], capture_output=True, text=True, timeout=120, check=False)


def contents(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


class Folder(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def refused(self, name, done):
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), (name, done.stderr))
        self.assertIn(name, done.stderr)


class RunOptions(Folder):
    def setUp(self):
        super().setUp()
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack("<4000I", *((7 * i * i + i) % 307 for i in range(4000))))
        self.plan = self.path("plan.json")
        job = ["--gpus", "1xcpu-64MiB", "--seq-len", "32", "--global-batch", "2", "--loss", "full"]
        subprocess.run([PROGRAM, "plan", MODEL, *job, "-o", self.plan], capture_output=True, timeout=60, check=True)

    def record(self, *flags, data="tokens.bin"):
        """run.json, and what the run said."""
        given = ["--data", self.path(data), "--threads", "1", "--steps", "3", "-o", self.path("run.json")]
        for flag in flags[::2]:
            if flag in given:
                del given[given.index(flag):given.index(flag) + 2]
        done = run(self.plan, *given, *flags)
        self.assertEqual(done.returncode, 0, (flags, done.stderr))
        return json.loads(contents(self.path("run.json"))), done.stderr

    def test_each_option(self):
        files = self.files_are_written()  # the others read what it wrote
        losses = self.losses_change()
        said = self.progress_differs()
        refused = self.refusals()
        adapters = self.adapters_are_written_and_read()
        for path in ELSEWHERE.values():
            self.assertTrue(os.path.exists(os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), path)), path)
        self.refused("--host-memory", run(MODEL, "--gpus", "1xcpu-64MiB", "--seq-len", "32", "--host-memory", "much"))
        tested = {*files, *losses, *self.losses_of_adafactor_change(), *said, *refused, *adapters, *COMPANIONS, *ELSEWHERE, "--gpus", "--host-memory", "--job", "--set"}
        self.assertEqual(set(help_of("run")) - set(job_flags()), tested)

    def losses_change(self):
        usual = self.record()[0]["loss"]
        for flag, value in LOSSES.items():
            self.assertNotEqual(self.record(flag, value)[0]["loss"], usual, flag)
        with open(self.path("tokens.bin"), "rb") as file, open(self.path("other.bin"), "wb") as other:
            other.write(file.read()[4000:])
        self.assertNotEqual(self.record(data="other.bin")[0]["loss"], usual)
        self.assertNotEqual(self.record("--weights", self.path("full"))[0]["loss"], usual)
        shutil.rmtree(self.path("saved", "step-00000003"))
        self.assertEqual(self.record("--resume", self.path("saved"))[0]["loss"], usual[2:])
        return {*LOSSES, "--data", "--weights", "--resume"}

    def losses_of_adafactor_change(self):
        job = [MODEL, "--gpus", "1xcpu-64MiB", "--seq-len", "32", "--data", self.path("tokens.bin"), "--threads", "1", "--steps", "3", "-o", self.path("run.json"),
               "--optimizer", "adafactor", "--lr", "0.1", "--warmup", "0"]

        def losses(*flags):
            done = run(*job, *flags)
            self.assertEqual(done.returncode, 0, (flags, done.stderr))
            return json.loads(contents(self.path("run.json")))["loss"]

        usual = losses()
        for flag, value in OF_ADAFACTOR.items():
            self.assertNotEqual(losses(flag, value), usual, flag)
        self.refused("--update-clip: 0.5 is less than 1", run(*job, "--update-clip", "0.5"))
        return set(OF_ADAFACTOR)

    def files_are_written(self):
        paths = {flag: self.path(name) for flag, name in (
            ("--metrics", "metrics.jsonl"), ("--trace", "trace.json"), ("--snapshot", "memory.pickle"), ("--events", "events"), ("--save", "saved"),
            ("--save-full", "full"), ("--dump-state", "state"))}
        flags = [word for pair in paths.items() for word in pair]
        self.record(*flags, "--trace-steps", "2", "--save-every", "1", "--keep", "2", "--dump-gradients", "2", "--dump-logits")
        for flag, path in {**paths, "--output": self.path("run.json")}.items():
            self.assertTrue(os.path.exists(path), flag)
        self.assertEqual(sorted(name for name in os.listdir(paths["--save"]) if name.startswith("step-")), ["step-00000002", "step-00000003"])
        steps = {event["args"]["step"] for event in json.loads(contents(paths["--trace"]))["traceEvents"] if "step" in event.get("args", {})}
        self.assertEqual(steps, {2})
        self.assertEqual(sorted(os.listdir(paths["--dump-state"])),
                         ["gradients-step2.safetensors", "logits-step1-micro0-rank0.safetensors", "parameters.safetensors"])
        return {*paths, "--output"}

    def adapters_are_written_and_read(self):
        job = [MODEL, "--gpus", "1xcpu-64MiB", "--seq-len", "32", "--data", self.path("tokens.bin"), "--threads", "1", "--steps", "2", "-o", self.path("run.json")]
        folder = self.path("adapters")

        def losses(*flags):
            done = run(*job, *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(contents(self.path("run.json")))["loss"]

        usual = losses("--method", "lora", "--save-adapters", folder)
        self.assertEqual(sorted(name for name in os.listdir(folder) if name.startswith("adapter_")), ["adapter_config.json", "adapter_model.safetensors"])
        self.assertNotEqual(losses("--adapters", folder), usual)
        self.refused("--save-adapters with --method full", run(*job, "--save-adapters", folder))
        self.refused("--save-full", run(*job, "--method", "lora", "--freeze", "layers:0", "--save-adapters", folder))
        self.refused("--adapters: --resume", run(*job, "--adapters", folder, "--resume", self.path("saved")))
        return {"--adapters", "--save-adapters"}

    def progress_differs(self):
        said = {style: self.record("--progress", style, "--steps", "1")[1] for style in ("bar", "lines", "none")}
        self.assertEqual(len(set(said.values())), 3, said)
        self.assertEqual(said["none"], "")
        return {"--progress"}

    def refusals(self):
        base = [self.plan, "--data", self.path("tokens.bin"), "--steps", "1"]
        for flag, value in COMPANIONS.items():
            self.refused(flag, run(*base, flag, *value))
        for flag, others in (("--dump-gradients", ["2", "--dump-state", self.path("late")]), ("--trace-steps", ["2", "--trace", self.path("late.json")])):
            self.refused(flag, run(*base, flag, *others))
        self.refused("--trace-steps", run(*base, "--trace", self.path("late.json")))  # its default is steps 2 and 3
        self.refused("--momentum: --optimizer adamw has no such option", run(*base, "--momentum", "0.5"))
        for flag in ("--gpus", "--job", "--set", "--precision"):
            self.refused("plan decides the job", run(*base, flag, "fp32"))
        for device in ("cuda", "phantom"):  # the plan is for CPU ranks
            done = run(*base, "--device", device)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--device", done.stderr)
        quantized = [MODEL, "--gpus", "1xcpu-64MiB", "--seq-len", "32", "--freeze", "layers:0", "--quantization", "nf4", "--steps", "1"]
        self.assertEqual(run(*quantized).returncode, 0)
        done = run(*quantized, "--save-full", self.path("quantized"))
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn("whole weights of what is frozen under --quantization nf4 (--save writes a checkpoint with codes)", done.stderr)
        self.assertEqual(run(*base, "--device", "cpu").returncode, 0)
        self.assertEqual(run(*base, "--budget", "100000").returncode, 6)
        return {"--device", "--budget"}


class RehearseOptions(Folder):
    def rehearse(self, *flags, command=("true",), gpus="2xH100-80GB"):
        return subprocess.run([PROGRAM, "rehearse", *(["--gpus", gpus] if gpus else []), *flags, "--", *command], capture_output=True, text=True,
                              timeout=120, check=False)

    def test_each_option(self):
        self.refused("--gpus", self.rehearse(gpus=None))
        show = (sys.executable, "-c", "import os; print(os.environ.get('RANK'))")
        self.assertIn("None\n", self.rehearse(command=show).stdout)
        self.assertIn("1\n", self.rehearse("--ranks", "1", command=show).stdout)
        self.assertNotEqual(self.rehearse("--timeout", "1", command=("sleep", "60")).returncode, 0)
        document = json.loads(self.rehearse("--json", "-o", self.path("own.json"), "--keep", self.path("kept")).stdout)
        self.assertEqual(json.loads(contents(self.path("own.json"))), document)
        settings = {self.settings(text) for text in ("addresses=ascending", "addresses=descending", "addresses=shuffled:3", "addresses=driver", "completion=immediate",
                                                     "completion=late:3", "real-bytes=9", "values=unknown", "routing=worst", "selected=0.5", "integer-bytes=9",
                                                     "float-bytes=9", "workspaces=bound")}
        self.assertEqual(len(settings), 12)  # one of them is the default
        # Of a command that uses no GPU there is none to write, which is said.
        for flag in ("--snapshot", "--trace"):
            self.assertIn(f"{flag}: no process left one", self.rehearse(flag, self.path("file")).stdout)
        # --strict-oom needs a program that survives an out-of-memory error: rehearse_torch_test.py. --search, --jobs, --warm and
        # --cache need one whose memory depends on a value: tests/rehearse/search_test.py. Choices of recipes: tests/rehearse/recipe_options_test.py.
        # --band needs one whose sizes are assumed: tests/rehearse/values_test.py.
        self.assertEqual(set(help_of("rehearse")),
                         {"--gpus", "--ranks", "--timeout", "--json", "--output", "--keep", "--set", "--snapshot", "--trace", "--strict-oom",
                          "--search", "--band", "--jobs", "--cache", "--warm", "--recipe", "--python", "--seq-len", "--micro-batch", "--grad-accum", "--precision",
                          "--gradient-checkpointing", "--optimizer", "--optimizer-in-backward", "--offload", "--sharding", "--overlap-comm", "--zero3-sizes", "--kernels", "--steps",
                          "--lora-rank", "--rotary-positions"})

    def settings(self, text):
        kept = self.path(re.sub(r"\W", "", text))
        self.rehearse("--set", text, "--keep", kept)
        return json.dumps(json.loads(contents(os.path.join(kept, "session.json")))["settings"], sort_keys=True)


if __name__ == "__main__":
    unittest.main()
