"""Trains a job of jobs.py with PyTorch's FSDP2 and reports what the caching allocator saw.

    vramfit rehearse --gpus CLUSTER --ranks 0 -- python -O train.py job.json plain|full|fused

Public PyTorch only, or with the kernels and the loss of lean.py. -O: Liger's check that labels are in range reads what kernels
computed, which a phantom doesn't know. job.json holds jobs.Job's fields. Prints one JSON object:

    {"versions": {...}, "load": {...}, "steps": [{"allocated", "reserved", "requested", "retries"}, ...]}    bytes: peaks
"""

import fnmatch
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel

from jobs import FROZEN, Job
from model import Model, Ops, loss_in_chunks

STEPS = 3
# reshard_after_forward of blocks (but for the last), the last block, embedding and head, and the root. None: PyTorch's default,
# which is True for all but the root.
RESHARD = {"full-shard": (None, None, None, None), "full-shard always": (True, True, True, True),
           "full-shard last-kept": (None, False, None, None), "shard-grad-op": (False, False, False, False),
           "hybrid-shard": (None, None, None, None)}


def make_mesh(job):
    if job.replicas() > 1:
        return init_device_mesh("cuda", (job.replicas(), job.ranks // job.replicas()), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cuda", (job.ranks,), mesh_dim_names=("shard",))


def freeze(model, patterns):
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)


def shard(model, job):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shared = {"mesh": make_mesh(job), "mp_policy": policy}
    block_reshard, last_reshard, end_reshard, root_reshard = RESHARD[job.sharding]
    for block in model.layers:
        last = block is model.layers[-1]
        fully_shard(block, reshard_after_forward=last_reshard if last else block_reshard, **shared)
    chain = list(model.layers)
    if job.embeddings == "wrapped":
        if job.tied:  # a shared parameter belongs to one group
            fully_shard([model.embed_tokens, model.head], reshard_after_forward=end_reshard, **shared)
        else:
            fully_shard(model.embed_tokens, reshard_after_forward=end_reshard, **shared)
            fully_shard(model.head, reshard_after_forward=end_reshard, **shared)
            chain = [model.embed_tokens, *chain, model.head]
    fully_shard(model, reshard_after_forward=root_reshard, **shared)
    if job.prefetch != "default":
        depth = int(job.prefetch.split()[1])
        for i, module in enumerate(chain[:-1]):
            module.set_modules_to_forward_prefetch(chain[i + 1 : i + 1 + depth])


def materialize(model, job):
    model.to_empty(device="cuda")
    model.tie()
    model.make_rotations(job.sequence, "cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            shard_of = parameter.to_local()
            shard_of.normal_(std=0.02) if parameter.ndim > 1 else shard_of.fill_(1.0)
    torch.cuda.empty_cache()  # what making the model left behind is not training's


def peaks():
    stats = torch.cuda.memory_stats()
    return {**{name: stats[f"{name}_bytes.all.peak"] for name in ("allocated", "reserved", "requested")},
            "retries": stats["num_alloc_retries"]}


def train_step(model, optimizer, job):
    shape = (job.micro_batch, job.sequence)
    for _ in range(job.accumulation):
        ids, labels = (torch.zeros(shape, dtype=torch.int64).to("cuda") for _ in range(2))
        (model(ids, labels) / job.accumulation).backward()
        del ids, labels
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def ops_of(job, kind):
    if kind == "plain":
        return Ops(loss=loss_in_chunks(int(job.loss.removeprefix("chunked:")) if job.loss != "full" else 1))
    from lean import lean_ops  # importing Liger takes as long as all the rest

    return lean_ops(kind)


def main(path, kind):
    with open(path, encoding="utf-8") as file:
        job = Job(**json.load(file))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Model(job.config(), ops_of(job, kind), job.checkpointing == "full")
    freeze(model, FROZEN[job.frozen])
    shard(model, job)
    materialize(model, job)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=3e-4, fused=True)
    report = {"versions": {"torch": torch.__version__, "card": torch.cuda.get_device_name()}, "load": peaks(), "steps": []}
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        for _ in range(STEPS):
            torch.cuda.reset_peak_memory_stats()
            train_step(model, optimizer, job)
            report["steps"].append(peaks())
    print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
