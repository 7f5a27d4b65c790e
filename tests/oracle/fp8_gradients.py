"""--gradient-dtype fp8 against PyTorch in fp32: gradients of layers' linears are rounded to e4m3 with a scale for what a rank has of each,
after every micro-batch, and once more after replicas have added them up (FP8-LM, arXiv:2310.18313, with MS-AMP's scales). With fp8-sent,
each rank rounds its own gradient of a micro-batch first, part by part for the ranks that keep them. SGD updates the weights, because AdamW's first steps magnify last bits.

A sum that lies on the border of two codes may be rounded the other way on each side, so what is compared is the distance of all of a
step's gradients, beside that of whole gradients. Each mistake in the reference must be noticed.
Arguments: `cases` or `mistakes`.
"""

import functools

import torch

import executor
import reference
from executor import Case, Workplace, batches
from parity import Comparison, flat, relative, report
from parts import run_part

HYPER = reference.Hyper(optimizer="sgd", lr=0.05, steps=6)
FLAGS = ("--gradient-dtype", "fp8")
SENT = ("--gradient-dtype", "fp8-sent")
CLOSE = 1e-3   # of norms: ten times what the other rounding of one sum in a thousand comes to, a tenth of FP8's own error at least


def rounded(x, dtype=torch.float8_e4m3fn, scaled=True):
    """The least power of two that brings the largest number into the format."""
    largest = float(x.abs().max())
    scale = 2.0 ** torch.tensor(largest / torch.finfo(dtype).max).double().log2().ceil().item() if scaled and largest > 0 else 1.0
    return (x / scale).to(dtype).float() * scale


def in_parts(form, x, ranks):
    """Rows of each rank by themselves."""
    rows = -(-x.shape[0] // ranks)
    return torch.cat([form(x[first : first + rows]) for first in range(0, x.shape[0], rows)])


def is_kept(name, gradient):
    return gradient.dim() == 2 and (".layers." in name or ".layer." in name or ".h." in name)


def gradients_of(model, micro_batches, scale, form):
    """Added up micro-batch by micro-batch: `form` of each sum of a matrix. With the loss."""
    sums, total = {}, 0.0
    for ids, labels in micro_batches:
        model.zero_grad(set_to_none=True)
        loss = reference.loss_of(reference.logits_of(model, ids), labels, scale)
        loss.backward()
        total += float(loss.detach().double())
        for name, p in model.named_parameters():
            added = sums[name] + p.grad if name in sums else p.grad.clone()
            sums[name] = form(added) if is_kept(name, added) else added
    return sums, total


def gradients_sent(model, micro_batches, scale, form, sent):
    """The same, of each rank by itself: `form` of the sum of what there is and `sent` of each rank's gradient."""
    sums, total = {}, 0.0
    for of_ranks in micro_batches:
        of_rank = [gradients_of(model, [rows], scale, lambda x: x) for rows in of_ranks]
        total += sum(loss for _, loss in of_rank)
        for name in of_rank[0][0]:
            parts = [gradients[name] for gradients, _ in of_rank]
            is_coded = is_kept(name, parts[0])
            added = sum((sent(part) if is_coded else part for part in parts), sums.get(name, torch.zeros(())))
            sums[name] = form(added) if is_coded else added
    return sums, total


def recipe(case, place, hyper, mistake=""):
    model = reference.build(executor.model_path(case.family), place.state)
    optimizer = reference.OPTIMIZERS[hyper.optimizer](model, hyper, reference.NO_MUTATION)
    of_step, trace = batches(case, place.data, hyper.steps), reference.Trace([], None, None, None)
    has_replicas = case.sharding == "no-shard"
    dtype = torch.float8_e5m2 if mistake == "e5m2" else torch.float8_e4m3fn
    form = functools.partial(in_parts, functools.partial(rounded, dtype=dtype, scaled=mistake != "no scales"), ranks=1 if has_replicas else case.ranks)
    for step in range(1, hyper.steps + 1):
        whole = of_step(step)
        scale = 1.0 / sum(int((labels != reference.IGNORE_INDEX).sum()) for _, labels in whole)
        rows = case.micro_batch
        own = [[(ids[r * rows : (r + 1) * rows], labels[r * rows : (r + 1) * rows]) for ids, labels in whole] for r in range(case.ranks)] if has_replicas else [whole]
        each = form if mistake not in ("once a step", "whole gradients") else lambda x: x
        if case.extra == SENT and mistake not in ("sent whole", "whole gradients"):
            split = [[(ids[r * rows : (r + 1) * rows], labels[r * rows : (r + 1) * rows]) for r in range(case.ranks)] for ids, labels in whole]
            parts = [gradients_sent(model, split, scale, (lambda x: x) if mistake == "sums not rounded" else form, form)]
        else:
            parts = [gradients_of(model, of_rank, scale, each) for of_rank in own]
        gradients = {name: sum(part[name] for part, _ in parts) for name in parts[0][0]}
        if mistake == "once a step" or (has_replicas and mistake not in ("whole gradients", "replicas not rounded")):
            gradients = {name: form(g) if is_kept(name, g) else g for name, g in gradients.items()}
        trace.losses.append(sum(loss for _, loss in parts))
        if step == 1:
            trace.gradients = {name: g.clone() for name, g in gradients.items()}
        norm = float(sum((g.double() ** 2).sum() for g in gradients.values()) ** 0.5)
        factor = min(1.0, hyper.clip / (norm + 1e-6))
        optimizer.step({name: g * factor for name, g in gradients.items()}, reference.learning_rate(hyper, step))
    trace.parameters = reference.full_state(model)
    return trace


def distances(ours, theirs, before):
    """Of the first step's gradients, and of what all steps changed, relative to their sizes."""
    names = sorted(theirs.gradients)
    moved = [flat({n: run.parameters[n] - before[n] for n in names}, names) for run in (ours, theirs)]
    return {"gradients": relative(flat(ours.gradients, names), flat(theirs.gradients, names)), "updates": relative(*moved)}


CASES = [("llama", 1, {"accumulation": 3}), ("llama", 2, {"accumulation": 2}), ("qwen2", 3, {"checkpointing": "full"}), ("gpt2", 2, {"loss": "chunked:3"}),
         ("bert", 1, {}), ("phi3", 2, {"sharding": "no-shard", "accumulation": 2}), ("llama", 3, {"sharding": "no-shard"}),
         ("llama", 3, {"accumulation": 2, "extra": SENT}), ("gpt2", 2, {"extra": SENT})]


def cases():
    ok = True
    for family, ranks, options in CASES:
        case, place = Case(family, ranks=ranks, **{"extra": FLAGS, **options}), Workplace(family)
        ours, c = place.executor(case, HYPER), Comparison()
        theirs, whole = recipe(case, place, HYPER), recipe(case, place, HYPER, "whole gradients")
        far = distances(ours, whole, place.state)
        for what, distance in distances(ours, theirs, place.state).items():
            c.hold(what, family, distance, CLOSE)
            c.hold(f"{what} / distance from whole ones", family, distance / far[what], 0.1)
        ok &= report(case, c)
    return ok


MISTAKES = {"whole gradients": {}, "no scales": {}, "e5m2": {}, "once a step": {}, "replicas not rounded": {"sharding": "no-shard"},
            "sent whole": {"extra": SENT}, "sums not rounded": {"extra": SENT}}


def mistakes():
    ok = True
    for mistake, options in MISTAKES.items():
        case, place = Case("llama", ranks=2, accumulation=2, **{"extra": FLAGS, **options}), Workplace("llama")
        distance = distances(place.executor(case, HYPER), recipe(case, place, HYPER, mistake), place.state)["gradients"]
        print(f"{'ok  ' if distance >= 10 * CLOSE else 'FAIL'} {mistake}: {distance:.2g}", flush=True)
        ok &= distance >= 10 * CLOSE
    return ok


if __name__ == "__main__":
    run_part(cases, mistakes)
