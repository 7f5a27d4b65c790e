"""What ranks tell each other through process groups, checked on every rank. With `alone` this rank runs, and the others are
ghosts, which send what it sends; with `bound` the groups know their card, and others are split off by ncclCommSplit."""
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

ALONE, BOUND = "alone" in sys.argv, "bound" in sys.argv
RANK, RANKS, LOCAL = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
DEVICE = torch.device("cuda", LOCAL)


def sent_by(value):
    """What each rank of the world sends, where rank R sends value(R)."""
    return [value(RANK if ALONE else rank) for rank in range(RANKS)]


def card(values, dtype=None):
    return torch.tensor(values, dtype=dtype).to(DEVICE)


def room(count):
    return torch.empty(count, dtype=torch.long, device=DEVICE)


def same(tensor, expected):
    assert tensor.cpu().tolist() == expected, (RANK, tensor.cpu().tolist(), expected)


def collectives():
    x = card([RANK + 1.0, 10.0 * RANK])
    dist.all_reduce(x)
    same(x, [float(sum(sent_by(lambda rank: rank + 1))), 10.0 * sum(sent_by(lambda rank: rank))])
    x = card([RANK % 4 * 8.0], torch.bfloat16)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    same(x, [sum(sent_by(lambda rank: rank % 4 * 8.0)) / RANKS])
    x = room(RANKS)
    dist.all_gather_into_tensor(x, card([7 * RANK]))
    same(x, sent_by(lambda rank: 7 * rank))
    x = room(1)
    dist.reduce_scatter_tensor(x, card([part * (RANK + 1) for part in range(RANKS)]))
    same(x, [RANK * sum(sent_by(lambda rank: rank + 1))])
    x = room(RANKS)
    dist.all_to_all_single(x, card([100 * RANK + part for part in range(RANKS)]))
    same(x, sent_by(lambda rank: 100 * rank + RANK))
    dist.all_reduce(torch.empty(1 << 22, device=DEVICE))  # booked: nobody waits
    dist.barrier()


def objects():
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, "x" * (50 * RANK + 1))
    assert gathered == sent_by(lambda rank: "x" * (50 * rank + 1))
    values = [{"rank": RANK}, "y" * RANK]
    dist.broadcast_object_list(values, src=RANKS - 1)
    root = RANK if ALONE else RANKS - 1
    assert values == [{"rank": root}, "y" * root], values
    if ALONE:
        return
    large = ["z" * 3_000_000 if RANK == 0 else None]
    dist.broadcast_object_list(large, src=0)
    assert len(large[0]) == 3_000_000
    part = [None]
    dist.scatter_object_list(part, [("part", rank) for rank in range(RANKS)] if RANK == 1 else None, src=1)
    assert part == [("part", RANK)]


def pairs():
    after, before = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    received = room(1)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received, before),
                                        dist.P2POp(dist.isend, card([RANK]), after)]):
        work.wait()
    same(received, [RANK if ALONE else before])


def orders():
    """Two communicators, used in opposite orders: on a card they are two streams."""
    first, second = dist.new_group(), dist.new_group()
    ours = [first, second] if RANK % 2 == 0 else [second, first]
    values = {group: card([RANK + 1 if group is first else 10 * (RANK + 1)]) for group in ours}
    for work in [dist.all_reduce(values[group], group=group, async_op=True) for group in ours]:
        work.wait()
    total = sum(sent_by(lambda rank: rank + 1))
    same(values[first], [total])
    same(values[second], [10 * total])


def meshes():
    mesh = init_device_mesh("cuda", (RANKS // 2, 2), mesh_dim_names=("data", "tensor"))
    members = {"tensor": [RANK // 2 * 2, RANK // 2 * 2 + 1], "data": list(range(RANK % 2, RANKS, 2))}
    for name, ranks in members.items():
        x = card([RANK + 1])
        dist.all_reduce(x, group=mesh.get_group(name))
        same(x, [sum((RANK if ALONE else rank) + 1 for rank in ranks)])


def gloo():
    through_gloo(dist.new_group(backend="gloo"))
    both = dist.new_group(backend="cuda:nccl,cpu:gloo")  # in the order in which accelerate names them
    through_gloo(both)
    x = card([RANK + 1])
    dist.all_reduce(x, group=both)
    same(x, [sum(sent_by(lambda rank: rank + 1))])


def through_gloo(group):
    x = torch.tensor([RANK + 1])
    dist.all_reduce(x, group=group)
    same(x, [sum(sent_by(lambda rank: rank + 1))])
    gathered = [None] * RANKS
    dist.all_gather_object(gathered, RANK, group=group)
    assert gathered == sent_by(lambda rank: rank), gathered
    dist.barrier(group=group)


def main():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE if BOUND else None)
    for check in (collectives, objects, pairs, orders, meshes, gloo):
        check()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {RANK} ok\n")  # one write: ranks share an unbuffered pipe, where print()'s pieces would mix


if __name__ == "__main__":
    main()
