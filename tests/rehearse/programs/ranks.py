"""One process for each GPU, started by torchrun. Usage: ranks.py NAME"""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from tiny import LAYERS, VOCABULARY, WIDTH, Block, LanguageModel, on_card, say_held, step_of, tokens

STEPS = 3
LOCAL = int(os.environ.get("LOCAL_RANK", 0))


def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        step_of(model, optimizer, step)
    say_held()


def data_parallel():
    train(nn.parallel.DistributedDataParallel(on_card(LanguageModel), device_ids=[LOCAL]))


def zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    model = nn.parallel.DistributedDataParallel(on_card(LanguageModel), device_ids=[LOCAL])
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3))


def fsdp1():
    import functools

    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    train(FullyShardedDataParallel(on_card(LanguageModel), auto_wrap_policy=policy, device_id=LOCAL, use_orig_params=True))


def fsdp2():
    from torch.distributed.fsdp import fully_shard
    model = on_card(LanguageModel)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    train(model)


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = on_card(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS))))
    for layer in model:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.randn(1024, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def pipeline():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = LAYERS // ranks
    parts = [on_card(nn.Embedding, VOCABULARY, WIDTH)] if rank == 0 else []
    parts += [on_card(Block) for _ in range(each)]
    parts += [on_card(nn.Linear, WIDTH, VOCABULARY, bias=False)] if rank == ranks - 1 else []
    stage = PipelineStage(nn.Sequential(*parts), rank, ranks, torch.device("cuda", LOCAL))

    def loss(logits, ids):
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())

    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss)
    optimizer = torch.optim.AdamW(stage.submod.parameters())
    for step in range(STEPS):
        ids = tokens(step)
        if rank == 0:
            schedule.step(ids)
        elif rank == ranks - 1:
            schedule.step(target=ids)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


if __name__ == "__main__":
    torch.cuda.set_device(LOCAL)
    dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL))
    globals()[sys.argv[1]]()
    dist.destroy_process_group()
