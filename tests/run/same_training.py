"""Trains 35 jobs on CPU ranks with two builds, and compares losses, gradient norms, loss scales, gradients, saved models and every
event of every rank, to the bit. For a change that must leave training as it is; no test of CI runs it.

    tests/run/same_training.py OLD_BIN NEW_BIN [WORD...]    # of build folders; only jobs whose lines contain a WORD

The old build plans each job, both train it."""

import json
import os
import sys

import checkpoints
from checkpoints import Workplace, contents

STEPS = 3
# Family, ranks, flags of the plan.
JOBS = """
llama 1
llama 2
llama 4
mistral 2
qwen2 2
qwen3 2
gemma 2
gemma2 2
gemma3_text 2
phi3 2
gpt2 2
bert 2
llama 2 --sharding no-shard
llama 2 --sharding shard-grad-op
llama 4 --sharding hybrid-shard --mesh replicate=2,shard=2
gpt2 4 --sharding hybrid-shard-zero2 --mesh replicate=2,shard=2
llama 2 --precision bf16-mixed
llama 2 --precision bf16-pure
llama 2 --precision fp16-mixed --loss-scale dynamic:1e6:2
llama 2 --precision fp8
qwen2 2 --precision bf16-mixed --reduce-dtype bf16
llama 2 --micro-batch 1
llama 2 --micro-batch 1 --accumulate unsharded
gpt2 2 --precision bf16-mixed --micro-batch 1 --accumulate unsharded
llama 2 --checkpointing full
gemma2 2 --checkpointing every:2
llama 2 --wrap size:6000
gpt2 2 --wrap none --wrap-embeddings off
llama 2 --prefetch backward=pre,forward=2
llama 4 --reshard 2
llama 2 --gradient-mask keep:0.4
qwen3 2 --freeze layers:0
llama 2 --load rank0
llama 2 --loss chunked:3
phi3 2 --precision bf16-mixed --checkpointing full
"""


def files_below(folder):
    return {os.path.relpath(os.path.join(at, name), folder): contents(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names}


def trained(place, ranks, job):
    """What must be equal, by name."""
    folders = {name: place.fresh(name) for name in ("events", "dump", "full")}
    metrics = place.path("metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)  # a run appends
    run = place.run("--events", folders["events"], "--dump-gradients", "2", "--save-full", folders["full"], "--metrics", metrics, ranks=ranks, job=job)
    if run.code != 0:
        sys.exit(f"exit {run.code}: {run.errors}")
    results = {f"run.json: {key}": run.record[key] for key in ("loss", "loss_scale", "skipped_steps")}
    norms = [json.loads(line).get("gradient_norm") for line in contents(metrics).splitlines()]
    results["gradient norms"] = [norm for norm in norms if norm is not None]
    for name, folder in folders.items():
        found = files_below(folder)
        if not found:
            sys.exit(f"{name}: nothing was written")
        results.update({f"{name}/{path}": data for path, data in found.items()})
    return results


def differences(line, bins):
    family, ranks, *job = line.split()
    place = Workplace(family, steps=STEPS)
    results = []
    for checkpoints.BIN in bins:
        checkpoints.PROGRAMS = checkpoints.BIN
        results.append(trained(place, int(ranks), tuple(job)))
    old, new = results
    return [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)], len(old)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    bins, words = sys.argv[1:3], sys.argv[3:]
    failed = 0
    for line in JOBS.strip().splitlines():
        if words and not any(word in line for word in words):
            continue
        different, compared = differences(line, bins)
        failed += bool(different)
        print(f"{line}: " + (f"DIFFERS in {', '.join(different[:5])}" if different else f"{compared} results are equal"), flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
