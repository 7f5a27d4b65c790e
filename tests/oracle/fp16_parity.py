"""fp16-mixed against PyTorch in fp16 under torch.amp.GradScaler: the same scale after every step, the same steps skipped, and an
error against fp32 of at most 1.5 times PyTorch's own.

The fp32 run that both are measured by leaves out the steps that were skipped.

--storage-dtype fp16: the reference's parameters are rounded to fp16 at first and after each update, which is made in fp32 with states in
fp32, and its gradients to fp16 before they are unscaled. No optimizer of PyTorch does that: its states have the parameters' dtype, and its
GradScaler refuses gradients in fp16.
Arguments: `families`, `overflows`, `storage` or `mistakes` (deliberate ones in the reference must be noticed).
"""

import sys

import torch

import executor
import reference
from executor import Case, Workplace
from parity import BF16_FACTOR as FACTOR
from parity import Comparison, flat, relative, report, token_losses

HYPER = reference.Hyper(steps=10)


class Taken(torch.optim.Optimizer):
    """What GradScaler unscales and, unless a gradient overflowed, steps."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.taken = False

    def step(self, closure=None):
        self.taken = True


class Scaler:
    """GradScaler over one model, or none of it: a step is then skipped if it is listed."""

    def __init__(self, model, scaler, skipped):
        self.model, self.scaler, self.skipped, self.optimizer = model, scaler, skipped, Taken(model.parameters())

    def scale(self, loss):
        return self.scaler.scale(loss) if self.scaler else loss

    def unscale(self, gradients):
        for name, p in self.model.named_parameters():
            p.grad = gradients[name]
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        return {name: p.grad for name, p in self.model.named_parameters()}

    def is_taken(self, step):
        if not self.scaler:
            return step not in self.skipped
        self.optimizer.taken = False
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.optimizer.taken


def micro_batches(case, batches):
    """What each rank runs by itself: its gradients meet in fp32."""
    return [(i, l) for ids, labels in batches for i, l in zip(ids.split(case.micro_batch), labels.split(case.micro_batch), strict=True)]


class Compute:
    """The copy that forward and backward run on. With `wide_table` the embedding's gradient is summed in fp32, as the executor does it
    anyway; in fp16 it is the first to overflow."""

    def __init__(self, case, place, dtype, wide_table):
        self.model, self.dtype, self.table = reference.build(executor.model_path(case.family), place.state, dtype=dtype), dtype, None
        if wide_table:
            self.table = self.model.get_input_embeddings().float()
            self.table.register_forward_hook(lambda module, inputs, output: output.to(dtype))

    def load(self, state):
        reference.load(self.model, state)
        if self.table is not None:
            self.table.weight.data = self.table.weight.data.to(self.dtype).float()


def train(case, place, hyper, dtype=torch.float32, scaler=None, skipped=(), mistake="", wide_table=False, convert=None, storage=None):
    """A trace as reference.train's, with `scales` and `skipped` beside it. `convert` changes the model that computes. `storage` is the dtype
    of parameters and of summed gradients, which are fp32 otherwise."""
    of_step = executor.batches(case, place.data, hyper.steps)
    model = reference.build(executor.model_path(case.family), place.state)
    store(model, storage)
    copy = Compute(case, place, dtype, wide_table)
    compute = copy.model
    if convert:
        convert(compute)
    optimizer = reference.AdamW(model, hyper, reference.NO_MUTATION)
    scaling = Scaler(model, scaler, skipped)
    trace = reference.Trace([], None, None, None)
    trace.scales, trace.skipped = [], []
    for step in range(1, hyper.steps + 1):
        copy.load(reference.full_state(model))
        batches = micro_batches(case, of_step(step))
        tokens = sum(int((labels != reference.IGNORE_INDEX).sum()) for _, labels in batches)
        total, summed, all_logits = 0.0, {}, []
        for ids, labels in batches:
            compute.zero_grad(set_to_none=True)
            logits = reference.logits_of(compute, ids)
            all_logits.append(logits.detach().clone())
            loss = reference.loss_of(logits, labels, 1 / tokens)
            scaling.scale(loss).backward()
            total += float(loss.detach().double())
            for name, p in compute.named_parameters():
                g = torch.zeros_like(p, dtype=torch.float32) if p.grad is None else p.grad.float()
                summed[name] = summed[name] + g if name in summed else g.clone()
        if storage:
            summed = {name: g.to(storage).float() for name, g in summed.items()}
        if mistake == "clipped before unscaling":
            summed = clipped(summed, hyper)
        gradients = scaling.unscale(summed)
        if step == 1:
            trace.logits = torch.cat(all_logits[: case.ranks])
            trace.gradients = {n: g.clone() for n, g in gradients.items()}
        trace.losses.append(total)
        if scaling.is_taken(step):
            optimizer.step(clipped(gradients, hyper), reference.learning_rate(hyper, step))
            store(model, storage)
        else:
            trace.skipped.append(step)
            optimizer.count += mistake == "skipped steps counted"
        if scaler:
            trace.scales.append(scaler.get_scale())
    trace.parameters = reference.full_state(model)
    return trace


@torch.no_grad()
def store(model, dtype):
    for p in model.parameters() if dtype else ():
        p.copy_(p.to(dtype))


def clipped(gradients, hyper):
    factor = min(1.0, hyper.clip / (float(reference.global_norm(gradients)) + 1e-6))
    return {n: g * factor for n, g in gradients.items()}


def updates(trace, place):
    names = sorted(place.state)
    return flat({n: trace.parameters[n] - place.state[n] for n in names}, names)


def grad_scaler(scale, interval, **bent):
    return torch.amp.GradScaler("cpu", **{"init_scale": scale, "growth_interval": interval, **bent})


def compare(case, place, hyper, scale, interval, mistake="", wide_table=False, storage=None, **bent):
    """Ours, PyTorch's fp16 and fp32; `mistake` and `bent` change the two references."""
    flags = ("--loss-scale", f"dynamic:{scale}:{interval}")
    ours = place.executor(Case(**{**vars(case), "extra": (*case.extra, *flags)}), hyper)
    theirs = train(case, place, hyper, torch.float16, grad_scaler(scale, interval, **bent), mistake=mistake, wide_table=wide_table,
                   storage=storage)
    exact = train(case, place, hyper, skipped=ours.record["skipped_steps"], mistake=mistake)
    c = Comparison()
    if ours.record["skipped_steps"] != theirs.skipped:
        c.failures.append(f"skipped {ours.record['skipped_steps']}, PyTorch {theirs.skipped}")
    if ours.record["loss_scale"] != theirs.scales:
        c.failures.append(f"scales {ours.record['loss_scale']}, PyTorch's {theirs.scales}")
    figures = {"updates": [relative(updates(r, place), updates(exact, place)) for r in (ours, theirs)]}
    if 1 not in theirs.skipped:
        names = sorted(exact.gradients)
        labels = executor.batches(case, place.data, 1)(1)[0][1]
        figures["gradients"] = [relative(flat(r.gradients, names), flat(exact.gradients, names)) for r in (ours, theirs)]
        figures["logits"] = [relative(r.logits, exact.logits) for r in (ours, theirs)]
        figures["token losses"] = [relative(token_losses(r.logits, labels), token_losses(exact.logits, labels)) for r in (ours, theirs)]
    for what, (own, pytorchs) in figures.items():
        c.hold(f"{what}: error / PyTorch's", case.family, own / pytorchs, FACTOR)
    squares = [sum(((a - b) / b) ** 2 for a, b in zip(r.losses, exact.losses, strict=True)) for r in (ours, theirs)]
    return c, squares


def families(names=("llama", "qwen3", "gemma", "gemma2", "gpt2", "bert")):
    """Without an overflow. A step's loss is one number whose error is luck, so losses are pooled."""
    ok, total = True, [0.0, 0.0]
    cases = [Case(family, ranks=2, precision="fp16-mixed", micro_batch=2) for family in names]
    # transformers rounds its rotary tables to the compute dtype too.
    cases.append(Case("llama", ranks=2, precision="fp16-mixed", micro_batch=2, extra=("--buffer-dtype", "fp16", "--output-dtype", "fp32")))
    for case in cases:
        family = case.family
        c, squares = compare(case, Workplace(family), HYPER, 1024.0, 2000)
        ok &= report(case, c)
        total = [a + b for a, b in zip(total, squares)]
    pooled = (total[0] / total[1]) ** 0.5
    print(f"{'ok  ' if pooled <= FACTOR else 'FAIL'} losses of all families and steps: error / PyTorch's {pooled:.2f}")
    return ok and pooled <= FACTOR


OVERFLOWING = 2.0**20


def overflows():
    """A first scale that is far too large, on several meshes: as many steps are skipped as PyTorch skips."""
    ok, place = True, Workplace("llama")
    meshes = [Case("llama"), Case("llama", ranks=2, accumulation=2, micro_batch=1), Case("llama", ranks=2, sharding="no-shard"),
              Case("llama", ranks=4, micro_batch=1, sharding="hybrid-shard", extra=("--mesh", "replicate=2,shard=2")),
              Case("llama", ranks=4, micro_batch=1, loss="chunked:3", checkpointing="full")]
    for mesh in meshes:
        case = Case(**{**vars(mesh), "precision": "fp16-mixed"})
        c, _ = compare(case, place, HYPER, OVERFLOWING, 3, wide_table=True)
        ok &= report(case, c)
    return ok


# Of which a rounding to fp16 is no small part.
SMALL_UPDATES = HYPER.with_(lr=1e-4)
STORED = ("--storage-dtype", "fp16")


def storage():
    """Parameters and gradients in fp16. One case overflows at first."""
    cases = [Case("llama", ranks=2, micro_batch=2), Case("llama", ranks=2, accumulation=2, micro_batch=1), Case("qwen3", checkpointing="full"),
             Case("gpt2", ranks=2, sharding="no-shard"), Case("gemma2", ranks=2)]
    ok = True
    for plain in cases:
        case = Case(**{**vars(plain), "precision": "fp16-mixed", "extra": STORED})
        overflows_first = case.accumulation > 1
        scale, interval = (OVERFLOWING, 3) if overflows_first else (1024.0, 2000)
        c, _ = compare(case, Workplace(case.family), SMALL_UPDATES, scale, interval, wide_table=overflows_first, storage=torch.float16)
        ok &= report(case, c)
    case = Case("llama", ranks=2, precision="fp16-mixed", extra=STORED)
    c, _ = compare(case, Workplace("llama"), SMALL_UPDATES, 1024.0, 2000)
    print(f"{'ok  ' if c.failures else 'FAIL'} parameters in fp32: {'; '.join(c.failures) or 'not noticed'}"[:200], flush=True)
    return ok and bool(c.failures)


MISTAKES = [({}, {"backoff_factor": 0.25}), ({}, {"growth_factor": 4.0}), ({}, {"growth_interval": 4}), ({}, {"init_scale": OVERFLOWING / 2}),
            ({"mistake": "clipped before unscaling"}, {}), ({"mistake": "skipped steps counted"}, {})]


def mistakes():
    place, case = Workplace("llama"), Case("llama", ranks=2, precision="fp16-mixed")
    c, _ = compare(case, place, HYPER, OVERFLOWING, 3, wide_table=True)
    ok = report(case, c)
    for mistake, bent in MISTAKES:
        c, _ = compare(case, place, HYPER, **{"scale": OVERFLOWING, "interval": 3, "wide_table": True, **mistake, **bent})
        print(f"{'ok  ' if c.failures else 'FAIL'} {mistake or bent}: {'; '.join(c.failures) or 'not noticed'}"[:200], flush=True)
        ok &= bool(c.failures)
    return ok


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if {"families": families, "overflows": overflows, "storage": storage, "mistakes": mistakes}[sys.argv[1]]() else 1)
