"""--quantization fp8 of matrices that are trained against PyTorch: linears compute with torchao's Float8Tensor of their weights, whose
gradients go to the weights themselves, which SGD updates in fp32: AdamW's first steps magnify last bits, and a weight on the border of two
codes that has the other one then is another model.

Each mistake in the reference (one scale for a matrix, masters that are rounded themselves, weights that aren't) must be noticed.
Arguments: `cases` or `mistakes`.
"""

import functools

import torch
import torch.nn.functional as F
from torchao.quantization import Float8Tensor, PerRow, PerTensor

import executor
import reference
from executor import Case, Workplace, batches
from parity import FIRST_STEP_TOLERANCE, LOSS_TOLERANCE, UPDATE_TOLERANCE, compare, report
from parts import run_part

HYPER = reference.Hyper(optimizer="sgd", lr=0.05, steps=6)
FLAGS = ("--quantization", "fp8", "--offload")


class Rounded(torch.autograd.Function):
    """What the card has of a weight; the gradient is the weight's."""

    @staticmethod
    def forward(_, weight, granularity):
        return Float8Tensor.from_hp(weight.detach(), granularity=granularity).dequantize(torch.float32)

    @staticmethod
    def backward(_, gradient):
        return gradient, None


def rounded_linear(linear, how, x):
    weight = linear.weight
    if how == "masters":
        weight.data.copy_(Rounded.apply(weight.data, PerRow()))
    elif how != "none":
        weight = Rounded.apply(weight, PerTensor() if how == "tensor" else PerRow())
    return F.linear(x, weight, linear.bias)


class Place(Workplace):
    how = "rows"

    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        model = reference.build(executor.model_path(self.family), self.state, attention)
        for layer in model.model.layers:
            for module in layer.modules():
                if isinstance(module, torch.nn.Linear):
                    module.forward = functools.partial(rounded_linear, module, self.how)
        return reference.train(model, batches(case, self.data, hyper.steps), hyper, mutation, **options)


def cases():
    ok = True
    for family, ranks, kind, options in (("llama", 1, "optimizer", {}), ("llama", 2, "optimizer+gradients", {"accumulation": 2}),
                                         ("qwen2", 2, "optimizer", {"checkpointing": "full"}), ("phi3", 2, "optimizer+gradients", {}),
                                         ("llama", 1, "params", {}), ("qwen2", 2, "params", {"accumulation": 2}),
                                         ("llama", 2, "optimizer", {"sharding": "no-shard", "loss": "chunked:3"})):
        case = Case(family, ranks=ranks, extra=(*FLAGS, kind), **options)
        ok &= report(case, compare(case, Place(family), HYPER)[0])
    return ok


def mistakes():
    place, case = Place("llama"), Case("llama", ranks=2, extra=(*FLAGS, "optimizer"))
    c, ours, _ = compare(case, place, HYPER)
    ok = report(case, c)
    limits = {"loss": LOSS_TOLERANCE, "gradient": FIRST_STEP_TOLERANCE, "update": UPDATE_TOLERANCE}
    for how in ("tensor", "masters", "none"):
        place.how = how
        c, _, _ = compare(case, place, HYPER, ours=ours)
        factor = max(c.worst[what][0] / limit for what, limit in limits.items() if what in c.worst)
        noticed = bool(c.failures) and factor >= 10
        print(f"{'ok  ' if noticed else 'FAIL'} mistake {how}: {factor:.0f} times the tolerance", flush=True)
        ok &= noticed
    return ok


if __name__ == "__main__":
    run_part(cases, mistakes)
