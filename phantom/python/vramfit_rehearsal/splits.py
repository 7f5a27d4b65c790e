"""Groups that torch splits off another with ncclCommSplit, in a session with ghosts. The call passes only this rank's color and
key, and ghosts have none, so NCCL's stand-in is told the ranks of the group before torch asks for it."""

import ctypes
import functools
import inspect

from vramfit_rehearsal.gloo_groups import replace_everywhere


def install(torch):
    distributed = torch.distributed
    for name, ranks in (("new_group", ranks_of_new), ("split_group", ranks_of_split)):
        make = getattr(distributed, name, None)
        if make is not None:
            replace_everywhere(make, announced(distributed, make, ranks))


def announced(distributed, make, ranks_of):
    signature = inspect.signature(make)

    @functools.wraps(make)
    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        tell(ranks_of(distributed, bound.arguments) if distributed.is_initialized() else [])
        try:
            return make(*args, **kwargs)
        finally:
            tell([])

    return call


def ranks_of_new(distributed, given):
    ranks = given["ranks"]
    return sorted(ranks) if ranks else list(range(distributed.get_world_size()))


def ranks_of_split(distributed, given):
    own = distributed.get_rank(given["parent_pg"])
    return next((sorted(ranks) for ranks in given["split_ranks"] or [] if own in ranks), [])


def tell(ranks):
    nccl = ctypes.CDLL("libnccl.so.2")
    nccl.phantomSplitRanks((ctypes.c_int * len(ranks))(*ranks), len(ranks))
