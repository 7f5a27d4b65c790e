"""The executor against PyTorch, fp32: same weights, same rows, one step and twenty.

Relative differences are ||a - b|| / ||b|| per tensor. A tensor whose reference gradient norm is under 1e-6 of the model's is
compared absolutely and left out of the update test, by name. Mutations of the reference must each make the comparison fail.
In bf16 the error against an fp32 run is at most 1.5 times that of PyTorch's own bf16 run.
Arguments: `families`, `meshes`, `all-meshes`, `bf16` or `mutations`.
"""

import itertools
import sys

import torch

import executor
import reference
from executor import Case, Workplace
from reference import Hyper, Mutation

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2", "granite", "bert"]

COMPOSED = ("--attention", "math")   # what CUDA takes where no fused kernel does, run on CPU

LOSS_TOLERANCE = 1e-6
FIRST_STEP_TOLERANCE = 1e-5    # logits and gradients
UPDATE_TOLERANCE = 1e-3
NOISE_FACTOR = 3               # gradients: times the difference between PyTorch's own eager and SDPA runs
NEGLIGIBLE = 1e-6              # of the model's gradient norm

HYPER = Hyper()


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300))


def split_heads(name, tensor, config):
    """Parts of a packed tensor: a key's slice may have no gradient where the query's has one."""
    if ".lora_" in name:
        return {"": tensor}
    if "qkv_proj" in name:
        heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
        dim = config["hidden_size"] // heads
        sizes = [heads * dim, kv * dim, kv * dim]
        return dict(zip(("q", "k", "v"), tensor.split(sizes, 0)))
    if "c_attn" in name:
        return dict(zip(("q", "k", "v"), tensor.split(config["n_embd"], -1)))
    return {"": tensor}


def parts(tensors, config):
    return {name + (f"[{part}]" if part else ""): t
            for name, whole in tensors.items() for part, t in split_heads(name, whole, config).items()}


class Comparison:
    """Collects what is out of tolerance; empty means equal."""

    def __init__(self):
        self.failures, self.negligible, self.worst = [], [], {}

    def hold(self, what, name, value, limit):
        if value > self.worst.get(what, (0.0, ""))[0]:
            self.worst[what] = (value, name)
        if not value <= limit:
            self.failures.append(f"{what} of {name}: {value:.3g} > {limit:.3g}")


def compare_losses(c, ours, theirs):
    for step, (a, b) in enumerate(zip(ours, theirs, strict=True), 1):
        c.hold("loss", f"step {step}", abs(a - b) / abs(b), LOSS_TOLERANCE)


def compare_gradients(c, ours, theirs, config):
    ours, theirs = parts(ours, config), parts(theirs, config)
    if set(ours) != set(theirs):
        c.failures.append(f"names differ: {sorted(set(ours) ^ set(theirs))[:4]}")
        return
    norm = float(reference.global_norm(theirs))
    for name, g in theirs.items():
        if float(g.norm()) < NEGLIGIBLE * norm:
            c.negligible.append(name)
            c.hold("negligible gradient", name, float((ours[name] - g).norm()) / norm, NEGLIGIBLE)
        else:
            c.hold("gradient", name, relative(ours[name], g), FIRST_STEP_TOLERANCE)


def compare_updates(c, ours, theirs, start, config):
    ours, theirs, start = parts(ours, config), parts(theirs, config), parts(start, config)
    for name, end in theirs.items():
        if name not in c.negligible:
            c.hold("update", name, relative(ours[name] - start[name], end - start[name]), UPDATE_TOLERANCE)


def compare(case, place, hyper, mutation=reference.NO_MUTATION, ours=None, theirs=None):
    c = Comparison()
    ours = ours or place.executor(case, hyper)
    theirs = theirs or place.reference(case, hyper, mutation)
    config = executor.config_of(case.family)
    compare_losses(c, ours.losses, theirs.losses)
    if ours.logits is not None:
        c.hold("logits", "step 1", relative(ours.logits, theirs.logits), FIRST_STEP_TOLERANCE)
    compare_gradients(c, ours.gradients, theirs.gradients, config)
    compare_updates(c, ours.parameters, theirs.parameters, place.state, config)
    return c, ours, theirs


def report(case, c):
    worst = ", ".join(f"{what} {value:.1e}" for what, (value, _) in sorted(c.worst.items()))
    print(f"{'ok  ' if not c.failures else 'FAIL'} {case.name}: {worst}", flush=True)
    if c.negligible:
        print(f"     compared absolutely: {', '.join(c.negligible)}")
    for failure in c.failures[:8]:
        print(f"     {failure}")
    return not c.failures


def compare_last_gradients(c, case, place, hyper):
    """After twenty steps: at most three times as far from PyTorch's SDPA run as its eager run is."""
    config = executor.config_of(case.family)
    ours = parts(place.executor(case, hyper, gradients_step=hyper.steps).gradients, config)
    sdpa = parts(place.reference(case, hyper, attention="sdpa").last_gradients, config)
    eager = parts(place.reference(case, hyper, attention="eager").last_gradients, config)
    for name, g in sdpa.items():
        if name not in c.negligible:
            c.hold("last gradient / noise", name, relative(ours[name], g) / relative(eager[name], g), NOISE_FACTOR)


def families():
    ok = True
    for case in [*map(Case, FAMILIES), Case("gemma2", extra=COMPOSED), Case("bert", extra=COMPOSED)]:
        family, place = case.family, Workplace(case.family)
        c, _, _ = compare(case, place, HYPER)
        if family != "gemma2":   # its softcap exists on the eager path alone, so there is no second run to measure by
            compare_last_gradients(c, case, place, HYPER)
        ok &= report(case, c)
    return ok


def mesh_cases(all_of_them):
    """Every pair of ranks and sharding, in turn without and with accumulation, or all of both."""
    for family in ("llama", "bert", "qwen2"):
        product = itertools.product((1, 2, 4), ("no-shard", "shard-grad-op", "full-shard"), (1, 2))
        for number, (ranks, sharding, accumulation) in enumerate(product):
            if all_of_them or number // 2 % 2 == accumulation - 1:
                yield Case(family, ranks=ranks, sharding=sharding, micro_batch=4 // ranks, accumulation=accumulation)
    for family in ("llama", "gemma2", "gpt2", "bert"):
        yield Case(family, ranks=2, loss="chunked:3", checkpointing="full", accumulation=2)


def meshes(all_of_them=False):
    """The same job on 1, 2 and 4 ranks: every one equals the one plain loop."""
    ok, places, trained = True, {}, {}
    for case in mesh_cases(all_of_them):
        place = places.setdefault(case.family, None) or Workplace(case.family)
        places[case.family] = place
        rows = case.family, case.ranks * case.micro_batch, case.accumulation, case.checkpointing  # all that the plain loop sees of a case
        c, _, trained[rows] = compare(case, place, HYPER.with_(steps=6), theirs=trained.get(rows))
        ok &= report(case, c)
    return ok


BF16_FACTOR = 1.5


def flat(tensors, names):
    return torch.cat([tensors[n].double().flatten() for n in names])


def token_losses(logits, labels):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1), reduction="none")


def bf16():
    """bf16-mixed against PyTorch in fp32: logits, the loss of each token and all gradients, family by family. A step's loss is
    one number whose error is luck (a sum of signed errors), so losses are pooled over all families and steps."""
    ok, squares = True, [0.0, 0.0]
    for family, extra in [*((f, ()) for f in FAMILIES), ("gemma2", COMPOSED)]:
        place = Workplace(family)
        case = Case(family, ranks=2, precision="bf16-mixed", micro_batch=4, extra=extra)
        hyper = HYPER.with_(steps=10)
        runs = place.executor(case, hyper), place.reference(case, hyper, compute_dtype=torch.bfloat16)
        exact = place.reference(case, hyper)
        names = sorted(exact.gradients)
        _, labels = executor.batches(case, place.data, 1)(1)[0]
        figures = {
            "logits": [relative(r.logits, exact.logits) for r in runs],
            "token losses": [relative(token_losses(r.logits, labels), token_losses(exact.logits, labels)) for r in runs],
            "gradients": [relative(flat(r.gradients, names), flat(exact.gradients, names)) for r in runs],
        }
        c = Comparison()
        for what, (ours, pytorchs) in figures.items():
            c.hold(f"{what}: error / PyTorch's", family, ours / pytorchs, BF16_FACTOR)
        ok &= report(case, c)
        for i, r in enumerate(runs):
            squares[i] += sum(((a - b) / b) ** 2 for a, b in zip(r.losses, exact.losses, strict=True))
    pooled = (squares[0] / squares[1]) ** 0.5
    print(f"{'ok  ' if pooled <= BF16_FACTOR else 'FAIL'} losses of all families and steps: error / PyTorch's {pooled:.2f}")
    return ok and pooled <= BF16_FACTOR


MUTATIONS = [
    Mutation("weight decay 0.3 -> 0.27", hyper={"weight_decay": 0.27}),
    Mutation("no weight decay", hyper={"weight_decay": 0.0}),
    Mutation("beta1 0.8 -> 0.82", hyper={"beta1": 0.82}),
    Mutation("beta2 0.9 -> 0.91", hyper={"beta2": 0.91}),
    Mutation("no bias correction", no_bias_correction=True),
    Mutation("gradients averaged over micro-batches", accumulation_scale=0.5),
    Mutation("no clipping", hyper={"clip": 0.0}),
    Mutation("clip 0.5 -> 0.55", hyper={"clip": 0.55}),
    Mutation("learning rate 1 % off", hyper={"lr": HYPER.lr * 1.01}),
]


def far_elements(ours, theirs, distance):
    """The share of elements that differ by more than `distance`."""
    return sum(int(((ours[n] - t).abs() > distance).sum()) for n, t in theirs.items()) / sum(t.numel() for t in theirs.values())


# Each optimizer but AdamW: what it is trained with, and a mistake that must be noticed. Lion's sign of a number near zero is
# luck, so all but one in a thousand elements must have gone the same way, where others' updates are compared tensor by tensor.
OTHERS = [
    (HYPER.with_(optimizer="sgd", lr=0.05, steps=6), Mutation("momentum 0.7 -> 0.72", hyper={"momentum": 0.72})),
    (HYPER.with_(optimizer="adafactor", lr=0.02, steps=6), Mutation("beta2_decay 0.6 -> 0.62", hyper={"beta2_decay": 0.62})),
    (HYPER.with_(optimizer="lion", lr=1e-3, steps=6), Mutation("beta1 0.8 -> 0.7", hyper={"beta1": 0.7})),
]
FAR_ELEMENTS = 1e-3


def other_optimizer(case, place, hyper, ours=None, mutation=reference.NO_MUTATION):
    if hyper.optimizer != "lion":
        return compare(case, place, hyper, mutation, ours)[:2]
    c, ours = Comparison(), ours or place.executor(case, hyper)
    theirs = place.reference(case, hyper, mutation)
    compare_losses(c, ours.losses, theirs.losses)
    compare_gradients(c, ours.gradients, theirs.gradients, executor.config_of(case.family))
    c.hold("elements more than a step away", "all", far_elements(ours.parameters, theirs.parameters, hyper.lr / 2), FAR_ELEMENTS)
    return c, ours


def other_optimizers(place):
    ok = True
    for hyper, mutation in OTHERS:
        case = Case("llama", ranks=2)
        c, ours = other_optimizer(case, place, hyper)
        ok &= report(Case("llama", ranks=2, extra=(hyper.optimizer,)), c)
        noticed = bool(other_optimizer(case, place, hyper, ours, mutation)[0].failures)
        print(f"{'ok  ' if noticed else 'FAIL'} mutation of {hyper.optimizer}: {mutation.name}", flush=True)
        ok &= noticed
    return ok


def mutations():
    """Each mistake in the reference must be noticed, by a figure at least ten times its tolerance."""
    place = Workplace("llama")
    case = Case("llama", ranks=2, accumulation=2)
    c, ours, _ = compare(case, place, HYPER)
    ok = report(case, c)
    for mutation in MUTATIONS:
        c, _, _ = compare(case, place, HYPER, mutation, ours)
        limits = {"loss": LOSS_TOLERANCE, "gradient": FIRST_STEP_TOLERANCE, "update": UPDATE_TOLERANCE}
        factor = max((c.worst[w][0] / limit for w, limit in limits.items() if w in c.worst), default=0)
        noticed = bool(c.failures) and factor >= 10
        print(f"{'ok  ' if noticed else 'FAIL'} mutation {mutation.name}: {factor:.0f} times the tolerance", flush=True)
        ok &= noticed
    return ok and other_optimizers(place)


if __name__ == "__main__":
    torch.set_num_threads(1)
    comparisons = {"families": families, "meshes": meshes, "all-meshes": lambda: meshes(True), "bf16": bf16, "mutations": mutations}
    sys.exit(0 if comparisons[sys.argv[1]]() else 1)
