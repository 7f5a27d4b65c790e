"""Runs of the programs that save and resume, for the tests of checkpoints."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile

import train_forks

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODELS = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "tests", "models")


PROGRAMS = BIN  # where those are that a run takes


def use_forks():
    """From now on, runs are forks of one process, but for those that ask for their own."""
    global PROGRAMS
    PROGRAMS = train_forks.Programs().folder


def contents(path):
    with open(path, "rb") as f:
        return f.read()


class Run:
    """What a run left: exit code, errors, losses and, if it ended well, the bytes of the final parameters."""

    def __init__(self, code, errors, record, dump):
        self.code, self.errors = code, errors
        self.record = json.loads(contents(record)) if code == 0 else None
        self.losses = self.record["loss"] if code == 0 else None
        self.parameters = contents(dump) if code == 0 else None


class Workplace:
    """Tokens, a plan for each layout, and one run after the other, in a directory of its own."""

    def __init__(self, family="llama", steps=6, rows=4, sequence=16, clip="0.5", flags=()):
        self.directory = tempfile.TemporaryDirectory(prefix="vramfit-checkpoints-")
        self.model, self.steps, self.rows, self.sequence = os.path.join(MODELS, f"{family}.json"), steps, rows, sequence
        self.flags = ["--token-bytes", "4", "--steps", str(steps), "--lr", "0.01", "--warmup", "2", "--clip", clip, "--weight-decay", "0.3",
                      "--seed", "7", "--threads", "1", *flags]
        self.plans = {}
        with open(self.model, encoding="utf-8") as f:
            vocabulary = json.load(f)["vocab_size"]
        generator = random.Random(5)
        self.data = self.path("tokens.bin")
        with open(self.data, "wb") as f:
            f.write(struct.pack("<20000I", *(generator.randrange(vocabulary) for _ in range(20000))))

    def path(self, *names):
        return os.path.join(self.directory.name, *names)

    def plan(self, ranks, job):
        key = (ranks, *job)
        if key not in self.plans:
            path = self.path(f"plan{len(self.plans)}.json")
            flags = {"--seq-len": str(self.sequence), "--precision": "fp32", "--global-batch": str(self.rows), **dict(zip(job[::2], job[1::2]))}
            command = [os.path.join(BIN, "vramfit"), "plan", self.model, "--gpus", f"{ranks}xcpu-1GiB", "-o", path]
            subprocess.run(command + [text for flag in flags.items() for text in flag], check=True, capture_output=True, timeout=60)
            self.plans[key] = path
        return self.plans[key]

    def command(self, *flags, ranks=1, job=(), own=False):
        """One rank runs without the launcher, so that what kills it is seen as it is. `own`: no fork."""
        plan, folder = self.plan(ranks, job), BIN if own else PROGRAMS
        program = [os.path.join(folder, "vramfit-train"), "--plan", plan] if ranks == 1 else [os.path.join(folder, "vramfit"), "run", plan]
        os.makedirs(self.path("dump"), exist_ok=True)
        return [*program, "--data", self.data, *self.flags, "--dump-state", self.path("dump"), "-o", self.path("run.json"), *flags]

    def run(self, *flags, ranks=1, job=(), environment=None, own=False, **options):
        done = subprocess.run(self.command(*flags, ranks=ranks, job=job, own=own), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                              env={**os.environ, **(environment or {})}, **options)
        return Run(done.returncode, done.stderr, self.path("run.json"), self.path("dump", "parameters.safetensors"))

    def fresh(self, name):
        """An empty place for checkpoints."""
        shutil.rmtree(self.path(name), ignore_errors=True)
        return self.path(name)


def steps_in(directory):
    """Steps of the committed checkpoints."""
    return sorted(int(name[5:]) for name in os.listdir(directory) if name.startswith("step-")) if os.path.isdir(directory) else []


def killed(run):
    return run.code in (-signal.SIGKILL, 128 + signal.SIGKILL)


def copied(source, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target
