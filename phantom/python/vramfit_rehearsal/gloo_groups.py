"""Gloo groups of a rank that runs alone. Gloo connects every pair of ranks, but the others are ghosts. torch's own "fake" backend
therefore takes its place, and CPU collectives return what they would if every rank had sent the same as this one.

The fake backend is torch.testing._internal.distributed.fake_pg: not public, but the only backend that needs no peers.
"""

import functools
import importlib
import inspect
import sys

NOTE = "gloo groups: CPU collectives are answered as if every rank had sent the same"


def install(torch, note):
    """For sessions with ghosts only. `note` is called with a sentence when such a group is created."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    for name in ("init_process_group", "new_group"):
        replace_everywhere(getattr(distributed, name), with_stand_in(torch, getattr(distributed, name), note))
    answers = Answers(torch)
    for name, answer in answers.by_function.items():
        replace_everywhere(getattr(distributed, name), answered(torch, getattr(distributed, name), answer))
    replace_everywhere(distributed.monitored_barrier, lambda group=None, **_: distributed.barrier(group=group))


def replace_everywhere(original, replacement):
    """Also replaces the function in torch's modules that imported it by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed"):
            for key, value in list(vars(module).items()):
                if value is original:
                    setattr(module, key, replacement)


def with_stand_in(torch, make, note):
    signature = inspect.signature(make)

    @functools.wraps(make)
    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        backend = bound.arguments.get("backend")
        if backend is None and make.__name__ == "init_process_group":
            backend = "cpu:gloo,cuda:nccl"  # what torch takes where both are there
        if backend is not None and "gloo" in str(backend).lower():
            importlib.import_module("torch.testing._internal.distributed.fake_pg")
            bound.arguments["backend"] = with_fake_first(str(backend))
            bound.arguments.pop("pg_options", None)
            note(NOTE)
        return make(*bound.args, **bound.kwargs)

    return call


def with_fake_first(backend):
    """The backends by device ("cuda:nccl,cpu:gloo") with the stand-in in gloo's place, before all others.

    torch (distributed_c10d.py, _new_process_group_helper) makes one set of options for NCCL and hands it to every backend after it,
    and the fake backend refuses NCCL's options.
    """
    parts = backend.lower().replace("gloo", "fake").split(",")
    return ",".join(sorted(parts, key=lambda part: not part.endswith("fake")))


def answered(torch, function, answer):
    """The collective, whose outputs on the CPU are then what the ghosts make them."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        work = function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        tensors = next(iter(given.values()))
        first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        group = given.get("group")
        if isinstance(first, torch.Tensor) and first.device.type == "cpu" and torch.distributed.get_rank(group) >= 0:
            with torch.no_grad():
                answer(given, torch.distributed.get_rank(group), torch.distributed.get_world_size(group))
        return work

    return call


class Answers:
    """What each collective leaves in its outputs; `given` are its arguments by name."""

    def __init__(self, torch):
        self.torch = torch
        self.by_function = {
            name: getattr(self, name)
            for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter",
                         "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
        }

    def combine(self, tensor, op, ranks):
        operations = self.torch.distributed.ReduceOp
        if op == operations.SUM:
            tensor.mul_(ranks)
        elif op == operations.PRODUCT:
            tensor.pow_(ranks)

    def fill(self, outputs, value):
        for output in () if outputs is None else outputs:
            if output.numel() == value.numel():
                output.copy_(value.reshape(output.shape))

    def all_reduce(self, given, _rank, ranks):
        self.combine(given["tensor"], given["op"], ranks)

    reduce = all_reduce

    def all_gather(self, given, _rank, _ranks):
        self.fill(given["tensor_list"], given["tensor"])

    def all_gather_into_tensor(self, given, _rank, ranks):
        self.fill(given["output_tensor"].reshape(ranks, -1), given["input_tensor"])

    def gather(self, given, _rank, _ranks):
        self.fill(given["gather_list"], given["tensor"])

    def scatter(self, given, rank, _ranks):
        if given["scatter_list"]:
            given["tensor"].copy_(given["scatter_list"][rank])

    def reduce_scatter(self, given, rank, ranks):
        given["output"].copy_(given["input_list"][rank])
        self.combine(given["output"], given["op"], ranks)

    def reduce_scatter_tensor(self, given, rank, ranks):
        self.fill([given["output"]], given["input"].reshape(ranks, -1)[rank])
        self.combine(given["output"], given["op"], ranks)

    def all_to_all(self, given, rank, _ranks):
        self.fill(given["output_tensor_list"], given["input_tensor_list"][rank])

    def all_to_all_single(self, given, rank, ranks):
        if not given["output_split_sizes"] and not given["input_split_sizes"]:
            self.fill(given["output"].reshape(ranks, -1), given["input"].reshape(ranks, -1)[rank])
