"""Runs jobs of the executor through train_jobs, which has LibTorch loaded once for all of them."""

import json
import os
import subprocess
import tempfile

import torch
from safetensors.torch import load_file

import executor
import pytorch_ranks


def plan_of(job, case, path):
    """Writes the plan of a ParityJob with everything else as the program's defaults have it."""
    replicate, shard = job.mesh
    flags = {
        "gpus": f"{job.ranks}xcpu-4GiB", "sharding": job.sharding, "mesh": f"replicate={replicate},shard={shard}", "wrap": job.wrap_flag,
        "wrap-embeddings": job.embeddings, "prefetch": job.prefetch, "precision": job.precision, "micro-batch": case.micro_batch,
        "grad-accum": case.accumulation, "accumulate": job.accumulate, "seq-len": case.sequence,
        "checkpointing": "none", "loss": "full", "attention": "auto", "reduce-finish": "early", "reshard-head": "off",
    }
    if job.precision == "fp16-mixed":
        flags["loss-scale"] = f"dynamic:{pytorch_ranks.LOSS_SCALE}:2000"
    if job.reshard != "-":
        flags["reshard"] = job.reshard
    command = [os.path.join(executor.BIN, "vramfit"), "plan", executor.model_path(job.family), "-o", path]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    for glob in job.frozen:
        command += ["--freeze", glob]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{job.name}: {' '.join(command)}\nexit {done.returncode}\n{done.stderr}")


class Program:
    """One train_jobs; `with` ends it."""

    def __enter__(self):
        self.process = subprocess.Popen([os.path.join(executor.BIN, "train_jobs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def run(self, job, case, hyper, place):
        with tempfile.TemporaryDirectory(prefix="vramfit-job-") as directory:
            path = {name: os.path.join(directory, name) for name in ("plan.json", "run.json", "said")}
            plan_of(job, case, path["plan.json"])
            flags = {
                "plan": path["plan.json"], "data": place.data, "token-bytes": 4, "weights": place.weights, "steps": hyper.steps, "lr": hyper.lr,
                "warmup": hyper.warmup, "clip": hyper.clip, "weight-decay": hyper.weight_decay, "beta1": hyper.beta1, "beta2": hyper.beta2,
                "eps": hyper.eps, "seed": case.seed, "threads": 1, "timeout": 120, "dump-state": directory, "dump-gradients": 1,
                "dump-logits": "on", "output": path["run.json"],
            }
            arguments = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
            self.process.stdin.write("\t".join([str(job.ranks), path["said"], *arguments]) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
            if answer != "0":
                with open(path["said"], encoding="utf-8") as f:
                    raise AssertionError(f"{job.name}: train_jobs says {answer or 'nothing'}\n{f.read()}")
            with open(path["run.json"], encoding="utf-8") as f:
                losses = json.load(f)["loss"]
            tensors = {name: load_file(os.path.join(directory, f"{name}.safetensors")) for name in ("gradients-step1", "parameters")}
            logits = [load_file(os.path.join(directory, f"logits-step1-micro0-rank{r}.safetensors"))["logits"] for r in range(job.ranks)]
            logits = torch.cat(logits).reshape(job.ranks * case.micro_batch, case.sequence, -1)
            return executor.Run(losses, logits, tensors["gradients-step1"], tensors["parameters"])
