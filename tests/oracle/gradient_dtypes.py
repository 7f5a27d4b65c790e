"""--gradient-dtype fp32, bf16 and fp16: gradients that add up in another dtype than that of the parameters.

    gradient_dtypes.py sums       bf16 parameters with fp32 gradients: a step's sums over micro-batches, replicas and shards are, to the bit,
                                  sums in fp32 of the bf16 gradients that runs of one micro-batch and one rank have
    gradient_dtypes.py training   fp32 parameters with gradients in 16 bits: beside PyTorch in fp32 whose sums are rounded after each
                                  micro-batch, and once more after replicas have added them up
    gradient_dtypes.py mistakes   in that reference must be noticed

A sum that lies on the border of two numbers of 16 bits may be rounded the other way on each side, so training is compared by the distance of
all of the first step's gradients, beside that of gradients that aren't rounded, and by losses; with AdamW by no more, as it magnifies
last bits in its first steps, and otherwise by what the updates changed. Left out are orders of rounding that the reference doesn't have: tied embeddings, of which each use is rounded, more
than two replicas, which round each addition, and accumulated gradients in host memory, which are rounded before they are added.
"""

import torch

import executor
import reference
from executor import Case, Workplace, batches
from fp8_gradients import distances, gradients_of
from parity import FAR_ELEMENTS, Comparison, far_elements, report
from parts import run_part

HYPER = reference.Hyper(steps=3)
SUMS = reference.Hyper(steps=1, lr=0.0, warmup=1, weight_decay=0.0, clip=1e9)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALE = 1024.0   # of the loss, whose gradients fp16 then holds


def flags(dtype, *more):
    return ("--gradient-dtype", dtype, *(("--loss-scale", str(SCALE)) if dtype == "fp16" else ()), *more)


def rounded(x, dtype):
    scale = SCALE if dtype == "fp16" else 1.0
    return (x * scale).to(DTYPES[dtype]).float() / scale


def recipe(case, place, hyper, dtype, mistake=""):
    model = reference.build(executor.model_path(case.family), place.state)
    optimizer = reference.OPTIMIZERS[hyper.optimizer](model, hyper, reference.NO_MUTATION)
    of_step, trace = batches(case, place.data, hyper.steps), reference.Trace([], None, None, None)
    has_replicas = case.sharding == "no-shard"
    other = {"bf16": "fp16", "fp16": "bf16"}[dtype]

    def form(x):
        return x if mistake == "not rounded" else rounded(x, other if mistake == "another dtype" else dtype)

    for step in range(1, hyper.steps + 1):
        whole = of_step(step)
        scale = 1.0 / sum(int((labels != reference.IGNORE_INDEX).sum()) for _, labels in whole)
        rows = case.micro_batch
        own = [[(ids[r * rows : (r + 1) * rows], labels[r * rows : (r + 1) * rows]) for ids, labels in whole] for r in range(case.ranks)] if has_replicas else [whole]
        parts = [added_up(model, of_rank, scale, (lambda x: x) if mistake == "once a step" else form) for of_rank in own]
        gradients = {name: sum(part[name] for part, _ in parts) for name in parts[0][0]}
        if mistake == "once a step" or has_replicas:
            gradients = {name: form(g) for name, g in gradients.items()}
        trace.losses.append(sum(loss for _, loss in parts))
        if step == 1:
            trace.gradients = {name: g.clone() for name, g in gradients.items()}
        norm = float(sum((g.double() ** 2).sum() for g in gradients.values()) ** 0.5)
        factor = min(1.0, hyper.clip / (norm + 1e-6))
        optimizer.step({name: g * factor for name, g in gradients.items()}, reference.learning_rate(hyper, step))
    trace.parameters = reference.full_state(model)
    return trace


def added_up(model, micro_batches, scale, form):
    """As gradients_of(), with `form` of each sum of whatever parameter. With the loss."""
    sums, total = {}, 0.0
    for micro_batch in micro_batches:
        own, loss = gradients_of(model, [micro_batch], scale, lambda x: x)
        sums = {name: form(sums[name] + g if name in sums else g) for name, g in own.items()}
        total += loss
    return sums, total


CLOSE = {"bf16": 3e-4, "fp16": 4e-5}   # of norms: a fifth of what rounding to that dtype comes to

CASES = [("llama", 1, "bf16", {"accumulation": 3}), ("llama", 2, "bf16", {"accumulation": 2}), ("phi3", 2, "bf16", {"checkpointing": "full"}),
         ("llama", 2, "bf16", {"sharding": "no-shard"}), ("phi3", 2, "fp16", {"accumulation": 2}), ("llama", 2, "fp16", {"loss": "chunked:3"}),
         ("llama", 2, "bf16", {"hyper": HYPER.with_(optimizer="sgd", lr=0.05)}), ("llama", 1, "fp16", {"hyper": HYPER.with_(optimizer="lion", lr=1e-3), "accumulation": 2}),
         ("phi3", 2, "bf16", {"hyper": HYPER.with_(optimizer="adafactor", lr=0.02)}), ("llama", 1, "bf16", {"more": ("--offload", "optimizer+gradients")}), ("phi3", 2, "bf16", {"more": ("--offload", "optimizer")})]


def training():
    ok = True
    for family, ranks, dtype, options in CASES:
        others = {name: value for name, value in options.items() if name not in ("more", "hyper")}
        hyper = options.get("hyper", HYPER)
        case, place = Case(family, ranks=ranks, extra=flags(dtype, *options.get("more", ())), **others), Workplace(family)
        ours, c = place.executor(case, hyper), Comparison()
        theirs, whole = recipe(case, place, hyper, dtype), recipe(case, place, hyper, dtype, "not rounded")
        distance, far = (distances(ours, other, place.state) for other in (theirs, whole))
        for what in ("gradients", "updates") if hyper.optimizer in ("sgd", "adafactor") else ("gradients",):
            c.hold(what, family, distance[what], CLOSE[dtype])
            c.hold(f"{what} / distance from those that aren't rounded", family, distance[what] / far[what], 0.25)
        if hyper.optimizer == "lion":
            c.hold("elements more than a step away", "all", far_elements(ours.parameters, theirs.parameters, hyper.lr / 2), FAR_ELEMENTS)
        for a, b in zip(ours.losses, theirs.losses, strict=True):
            c.hold("loss", family, abs(a - b) / abs(b), 1e-3)
        ok &= report(case, c)
    return ok


def mistakes():
    ok, place = True, Workplace("llama")
    case = Case("llama", accumulation=3, extra=flags("bf16"))
    ours = place.executor(case, HYPER)
    for mistake in ("not rounded", "another dtype", "once a step"):
        distance = distances(ours, recipe(case, place, HYPER, "bf16", mistake), place.state)["gradients"]
        noticed = distance > 2 * CLOSE["bf16"]
        print(f"{'ok  ' if noticed else 'FAIL'} {mistake}: {distance:.2g}", flush=True)
        ok &= noticed
    return ok


PURE = ("--state-dtype", "fp32", "--loss-scale", "none")


def of_one(place, row, rows):
    """Gradients of one micro-batch of one rank, which is micro-batch `row` of `rows` of a step, in the fp32 numbers of bf16. The loss is that
    of one micro-batch, so they are `rows` times as large, exactly: as many labels are in each, and `rows` is a power of two."""
    hyper = SUMS.with_(steps=row + 1)
    run = place.executor(Case("llama", precision="bf16-pure", micro_batch=1, extra=PURE), hyper, row + 1)
    return {name: g.float() / rows for name, g in run.gradients.items()}


def sums():
    ok, place = True, Workplace("llama")
    rows = 4
    each = [of_one(place, row, rows) for row in range(rows)]
    wide = ("--gradient-dtype", "fp32", "--reduce-dtype", "fp32")
    # Micro-batch by micro-batch: that of all ranks, or replica by replica.
    orders = {("full-shard", 1): lambda g: ((g[0] + g[1]) + g[2]) + g[3], ("full-shard", 2): lambda g: (g[0] + g[1]) + (g[2] + g[3]),
              ("no-shard", 2): lambda g: (g[0] + g[2]) + (g[1] + g[3])}
    for (sharding, ranks), order in orders.items():
        for offload in ("none", "optimizer", "optimizer+gradients"):
            if sharding == "no-shard" and offload == "optimizer+gradients":
                continue
            case = Case("llama", ranks=ranks, sharding=sharding, accumulation=rows // ranks, micro_batch=1, precision="bf16-pure",
                        extra=(*PURE, *wide, "--offload", offload))
            gradients = place.executor(case, SUMS).gradients
            expected = {name: order([g[name] for g in each]) for name in each[0]}
            narrow = {name: order([g[name] for g in each]).bfloat16().float() for name in each[0]}
            apart = [name for name, g in gradients.items() if not torch.equal(g.float(), expected[name])]
            is_wide = any(not torch.equal(g.float(), narrow[name]) for name, g in gradients.items())
            good = not apart and is_wide and sorted(gradients) == sorted(expected)
            print(f"{'ok  ' if good else 'FAIL'} {case.name}: {len(apart)} of {len(expected)} gradients differ from sums in fp32 {apart[:3]}"
                  + ("" if is_wide else "; all are numbers of bf16"), flush=True)
            ok &= good
    return ok


if __name__ == "__main__":
    run_part(sums, training, mistakes)
