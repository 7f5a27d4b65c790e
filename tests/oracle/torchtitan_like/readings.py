"""One training job, read twice: rehearsed (train.py on phantom cards) and counted (the estimator), in the same terms."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))
from dims import Dims  # noqa: E402
from figures import last_object  # noqa: E402

PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin"))
STEPS = 3
ALLOCATORS = {"expandable": "expandable_segments:True", "native": "expandable_segments:False"}


@dataclasses.dataclass
class Case(Dims):
    """Names of train.py; `other` are its options that the estimator has no rules for."""

    batch: int = 1
    ranks: int = 8
    replicas: int = 1
    reshard: str = "last-kept"
    checkpointing: str = "selective"
    optimizer: str = "foreach"
    runtime: str = "fsdp2"
    wrap: str = "root"
    layers_of_unit: int = 1
    accumulation: int = 1
    loss: str = "full"
    dtype: str = "bfloat16"
    card: str = "H100-80GB@95.04GiB"
    other: tuple = ()

    def cluster(self):
        ranks = self.ranks * self.replicas
        return f"{ranks // 8}x8x{self.card}" if ranks > 8 and ranks % 8 == 0 else f"{ranks}x{self.card}"

    def job(self, allocator):
        if self.runtime == "plain":
            precision = "fp32" if self.dtype == "float32" else "bf16-pure"
            runtime = {"runtime": "pytorch", "precision": precision, "grad_accum": self.accumulation}
        else:
            runtime = {"runtime": "pytorch-fsdp2", "wrap_embeddings": "on" if self.wrap == "ends" else "off"}
        fields = {**runtime, "modeling": "torchtitan", "attention": "flash", "allocator": allocator,
                  "seq_len": self.sequence, "micro_batch": self.batch, "checkpointing": self.checkpointing,
                  "optimizer": f"adamw:{self.optimizer}", "loss": self.loss}
        if self.runtime == "plain":
            return fields | ({"attention": "auto"} if self.dtype == "float32" else {})
        if self.layers_of_unit > 1:
            fields |= {"wrap": f"layers:{self.layers_of_unit}"}
        if self.replicas > 1:
            fields |= {"sharding": "hybrid-shard", "mesh": f"replicate={self.replicas},shard={self.ranks}"}
        if self.reshard == "never":
            fields |= {"sharding": "hybrid-shard-zero2" if self.replicas > 1 else "shard-grad-op"}
        else:
            fields |= {"reshard": self.reshard}
        return fields


def run(command, environment=None):
    done = subprocess.run([str(word) for word in command], env={**os.environ, **(environment or {})}, text=True,
                          capture_output=True, timeout=500, check=False)
    return done.returncode, done.stdout, done.stderr


def rehearse(case, allocator, steps, events=None):
    """What train.py prints, or None and its error when it failed (out of memory)."""
    options = {**dataclasses.asdict(case), "steps": steps}
    other, _ = options.pop("other"), options.pop("card")
    words = [word for name, value in options.items() for word in ("--" + name.replace("_", "-"), value)]
    if events:
        words += ["--events", events]
    code, out, error = run([PROGRAMS / "vramfit", "rehearse", "--gpus", case.cluster(), "--ranks", "0", "--", sys.executable,
                            FOLDER / "train.py", *words, *other], {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]})
    return (last_object(out), None) if code == 0 else (None, error)


def estimate(case, allocator, *more):
    """`vramfit estimate --json`, with more flags, or None and why not."""
    if case.other:
        return None, "no rules for " + " ".join(case.other)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.json")
        config.write_text(json.dumps(case.config()), encoding="utf-8")
        flags = [word for name, value in case.job(allocator).items() for word in ("--" + name.replace("_", "-"), value)]
        code, out, error = run([PROGRAMS / "vramfit", "estimate", config, "--gpus", case.cluster(), "--json", *flags, *more])
        if code not in (0, 3):
            return None, (out + error).strip()[-300:]
        return json.loads(out), None


def planned(case, *flags):
    """The case with what `vramfit plan` chooses for it: micro-batch, sharding, reshard policy, checkpointing, optimizer."""
    kept = {"runtime": "pytorch-fsdp2", "modeling": "torchtitan", "attention": "flash", "seq_len": case.sequence}
    with tempfile.TemporaryDirectory() as folder:
        config, plan = pathlib.Path(folder, "config.json"), pathlib.Path(folder, "plan.json")
        config.write_text(json.dumps(case.config()), encoding="utf-8")
        words = [word for name, value in kept.items() for word in ("--" + name.replace("_", "-"), value)]
        code, out, error = run([PROGRAMS / "vramfit", "plan", config, "--gpus", case.cluster(), "-o", plan, *words, *flags])
        if code != 0:
            raise SystemExit(f"plan: {(out + error).strip()[-1000:]}")
        job = json.loads(plan.read_text(encoding="utf-8"))["job"]
    mesh = dict(part.split("=") for part in job["mesh"].split(","))
    gathered = job["sharding"] in ("shard-grad-op", "hybrid-shard-zero2")
    return dataclasses.replace(case, batch=job["micro_batch"], ranks=int(mesh["shard"]), replicas=int(mesh["replicate"]),
                               reshard="never" if gathered else job["reshard"], checkpointing=job["checkpointing"],
                               optimizer=job["optimizer"].split(":")[1])


def counted_events(case):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.json")
        config.write_text(json.dumps(case.config()), encoding="utf-8")
        fields = [f"{name}={value}" for name, value in case.job("expandable").items()]
        code, out, error = run([PROGRAMS / "dump_events", config, case.cluster(), STEPS, *fields])
        if code != 0:
            raise SystemExit(f"dump_events: {error}")
        return [json.loads(line) for line in out.splitlines()]


def rehearsed_events(case):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "events")
        report, error = rehearse(case, "expandable", STEPS, path)
        if report is None:
            raise SystemExit(error[-3000:])
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
