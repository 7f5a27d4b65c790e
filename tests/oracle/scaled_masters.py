"""--master-dtype fp16 against PyTorch in fp32: linears' weights in layers are fp16 numbers with a scale for what a rank has of each, from
the first step on; an update is made of these in fp32 and rounded, as MS-AMP's optimizers do with master weights (FP8-LM,
arXiv:2310.18313, section 2.2). SGD updates the weights, because AdamW's first steps magnify last bits.

A number that lies on the border of two may be rounded the other way on each side, so what is compared is the distance of what all steps
changed, beside that of fp32 masters. Each mistake in the reference must be noticed. Numbers of all sizes are in
tests/executor/training/scaled_masters_test.cpp.
Arguments: `cases` or `mistakes`.
"""

import functools

import torch

import executor
import reference
from executor import Case, Workplace, batches
from fp8_gradients import in_parts, is_kept, rounded
from parity import Comparison, flat, relative, report
from parts import run_part

HYPER = reference.Hyper(optimizer="sgd", lr=0.05, steps=6)
FLAGS = ("--master-dtype", "fp16")
CLOSE = 1e-3   # of norms


def keep(model, form):
    for name, p in model.named_parameters():
        if is_kept(name, p):
            p.data.copy_(form(p.data))


def recipe(case, place, hyper, mistake=""):
    model = reference.build(executor.model_path(case.family), place.state)
    optimizer = reference.OPTIMIZERS[hyper.optimizer](model, hyper, reference.NO_MUTATION)
    of_step, trace = batches(case, place.data, hyper.steps), reference.Trace([], None, None, None)
    dtype = torch.bfloat16 if mistake == "bf16" else torch.float16
    ranks = 1 if case.sharding == "no-shard" else case.ranks
    form = functools.partial(in_parts, functools.partial(rounded, dtype=dtype, scaled=mistake != "bf16"), ranks=ranks)
    if mistake != "fp32":
        keep(model, form)
    for step in range(1, hyper.steps + 1):
        whole = of_step(step)
        scale = 1.0 / sum(int((labels != reference.IGNORE_INDEX).sum()) for _, labels in whole)
        model.zero_grad(set_to_none=True)
        losses = [reference.loss_of(reference.logits_of(model, ids), labels, scale) for ids, labels in whole]
        for loss in losses:
            loss.backward()
        trace.losses.append(sum(float(loss.detach().double()) for loss in losses))
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        norm = float(sum((g.double() ** 2).sum() for g in gradients.values()) ** 0.5)
        factor = min(1.0, hyper.clip / (norm + 1e-6))
        optimizer.step({name: g * factor for name, g in gradients.items()}, reference.learning_rate(hyper, step))
        if mistake not in ("fp32", "once at first"):
            keep(model, form)
    trace.gradients, trace.parameters = gradients, reference.full_state(model)
    return trace


def distance(ours, theirs, before):
    """Of what all steps changed of the matrices, relative to its size."""
    names = sorted(name for name, x in theirs.parameters.items() if is_kept(name, x))
    return relative(*(flat({n: run.parameters[n] - before[n] for n in names}, names) for run in (ours, theirs)))


CASES = [("llama", 1, {}), ("llama", 2, {"accumulation": 2}), ("qwen2", 3, {"checkpointing": "full"}), ("gpt2", 2, {"loss": "chunked:3"}),
         ("bert", 1, {}), ("phi3", 2, {"sharding": "no-shard", "accumulation": 2})]


def cases():
    ok = True
    for family, ranks, options in CASES:
        case, place = Case(family, ranks=ranks, extra=FLAGS, **options), Workplace(family)
        ours, c = place.executor(case, HYPER), Comparison()
        theirs, whole = recipe(case, place, HYPER), recipe(case, place, HYPER, "fp32")
        for step, (a, b) in enumerate(zip(ours.losses, theirs.losses)):
            c.hold("loss", f"step {step + 1}", abs(a - b) / abs(b), 1e-6)
        far = distance(ours, whole, place.state)
        c.hold("updates", family, distance(ours, theirs, place.state), CLOSE)
        c.hold("updates / distance from fp32 masters", family, distance(ours, theirs, place.state) / far, 0.1)
        ok &= report(case, c)
    return ok


def mistakes():
    ok, place = True, Workplace("llama")
    case = Case("llama", ranks=2, extra=FLAGS)
    ours = place.executor(case, HYPER)
    right = distance(ours, recipe(case, place, HYPER), place.state)
    for mistake in ("fp32", "bf16", "once at first"):
        factor = distance(ours, recipe(case, place, HYPER, mistake), place.state) / max(right, CLOSE / 10)
        print(f"{'ok  ' if factor >= 10 else 'FAIL'} {mistake}: {factor:.3g} times the distance from the recipe", flush=True)
        ok &= factor >= 10
    return ok


if __name__ == "__main__":
    run_part(cases, mistakes)
