"""Runs the executor on CPU ranks and reads back what it dumped."""

import functools
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file, save_file

import reference

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "run"))
import train_forks  # noqa: E402

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")


def model_path(family):
    return os.path.join(SOURCE, "tests", "models", f"{family}.json")


def config_of(family):
    with open(model_path(family), encoding="utf-8") as f:
        return json.load(f)


@dataclass(frozen=True)
class Case:
    """One run of the executor, and the reference's view of it."""

    family: str
    ranks: int = 1
    sharding: str = "full-shard"
    micro_batch: int = 2
    accumulation: int = 1
    sequence: int = 24
    precision: str = "fp32"
    checkpointing: str = "none"
    loss: str = "full"
    threads: int = 1
    seed: int = 7
    extra: tuple = ()

    @property
    def name(self):
        parts = [self.family, f"{self.ranks}r", self.sharding, f"a{self.accumulation}", self.precision]
        parts += [p for p in (self.checkpointing, self.loss) if p not in ("none", "full")]
        return " ".join([*parts, *self.extra])

    @property
    def masked(self):
        return self.family == "bert"

    @property
    def global_rows(self):
        return self.ranks * self.micro_batch * self.accumulation


@dataclass
class Run:
    losses: list
    logits: torch.Tensor
    gradients: dict
    parameters: dict
    record: dict = field(default_factory=dict)


def write_tokens(path, vocabulary, count, seed):
    """Tokens with structure (a noisy walk), so that there is something to learn and every id occurs."""
    generator = random.Random(seed)
    token, tokens = 0, []
    for _ in range(count):
        token = (token + generator.choice((1, 1, 2, 3))) % vocabulary if generator.random() < 0.8 else generator.randrange(vocabulary)
        tokens.append(token)
    with open(path, "wb") as f:
        f.write(struct.pack(f"<{count}I", *tokens))


def rows_of(case, data, count):
    """(ids, labels) of the first rows of the data order."""
    vocabulary = config_of(case.family)["vocab_size"]
    arguments = [data, 4, vocabulary, case.sequence, case.seed, int(case.masked), count]
    out = subprocess.run([os.path.join(BIN, "dump_rows")] + [str(a) for a in arguments], check=True, capture_output=True, text=True)
    rows = torch.tensor([[int(n) for n in line.split()] for line in out.stdout.splitlines()])
    return rows[:, : case.sequence], rows[:, case.sequence :]


def batches(case, data, steps):
    """step -> list of micro-batches: the rule of the data order, all ranks of a micro-batch together."""
    ids, labels = rows_of(case, data, steps * case.global_rows)

    def of_step(step):
        result = []
        for m in range(case.accumulation):
            first = ((step - 1) * case.accumulation + m) * case.ranks * case.micro_batch
            rows = slice(first, first + case.ranks * case.micro_batch)
            result.append((ids[rows], labels[rows]))
        return result

    return of_step


@functools.cache
def programs():
    """Whose ranks are forks of one process."""
    return train_forks.Programs().folder


def run(case, hyper, data, weights, directory, gradients_step=1):
    """Runs `vramfit run` and loads its dumps."""
    dump = os.path.join(directory, "dump")
    os.makedirs(dump, exist_ok=True)
    record = os.path.join(directory, "run.json")
    command = [os.path.join(programs(), "vramfit"), "run", model_path(case.family), "--gpus", f"{case.ranks}xcpu-4GiB"]
    flags = {
        "device": "cpu", "sharding": case.sharding, "precision": case.precision, "micro-batch": case.micro_batch,
        "grad-accum": case.accumulation, "seq-len": case.sequence, "checkpointing": case.checkpointing, "loss": case.loss,
        "steps": hyper.steps, "data": data, "token-bytes": 4, "weights": weights, "lr": hyper.lr, "warmup": hyper.warmup,
        "clip": hyper.clip, "optimizer": hyper.optimizer, "seed": case.seed, "threads": case.threads, "dump-state": dump, "dump-gradients": gradients_step,
    }
    flags |= {option.replace("_", "-"): getattr(hyper, option) for option in reference.OPTIONS[hyper.optimizer]}
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    if case.loss == "full":
        command += ["--dump-logits"]
    command += list(case.extra) + ["-o", record]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"{case.name}: {' '.join(command)}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    with open(record, encoding="utf-8") as f:
        recorded = json.load(f)
    logits = None
    if case.loss == "full":
        parts = [load_file(os.path.join(dump, f"logits-step1-micro0-rank{r}.safetensors"))["logits"] for r in range(case.ranks)]
        logits = torch.cat(parts).reshape(case.ranks * case.micro_batch, case.sequence, -1)
    return Run(recorded["loss"], logits, load_file(os.path.join(dump, f"gradients-step{gradients_step}.safetensors")),
               load_file(os.path.join(dump, "parameters.safetensors")), recorded)


class Workplace:
    """Weights and tokens of one family, made once, in a directory of its own."""

    def __init__(self, family, seed=3):
        self.family = family
        self.directory = tempfile.TemporaryDirectory(prefix=f"vramfit-{family}-")
        model = reference.build(model_path(family))
        reference.spread_weights(model, seed)
        self.state = reference.full_state(model)
        self.weights = os.path.join(self.directory.name, "model.safetensors")
        save_file(self.state, self.weights)
        self.data = os.path.join(self.directory.name, "tokens.bin")
        write_tokens(self.data, config_of(family)["vocab_size"], 60000, seed)

    def executor(self, case, hyper, gradients_step=1):
        with tempfile.TemporaryDirectory(prefix="vramfit-run-") as directory:
            return run(case, hyper, self.data, self.weights, directory, gradients_step)

    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        model = reference.build(model_path(self.family), self.state, attention)
        if case.checkpointing == "full":
            model.activation_checkpointing_enable({"use_reentrant": False})   # torch.utils.checkpoint, layer by layer
        return reference.train(model, batches(case, self.data, hyper.steps), hyper, mutation, **options)
