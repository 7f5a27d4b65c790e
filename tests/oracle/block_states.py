"""AdamW with quantized states against its published definition, flat and in training.

    block_states.py states      updates of a flat tensor: how far states are from those of AdamW in double, beside the definition's,
                                bitsandbytes' and torchao's own
    block_states.py losses      200 steps of a tiny model, beside PyTorch with the definition's states

The definition is Dettmers et al., arXiv:2110.02861: blocks of 256, each scaled by its largest magnitude, every number as the
nearest value of a dynamic map; with 4 bits, torchao's: blocks of 128, second moments in sixteenths. With FP8 in blocks, torchao's,
too: blocks of 256, both moments in e4m3. With FP8, Peng et al., arXiv:2310.18313: first moments in e4m3 and second ones in fp16,
each tensor's with a scale.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy
import reference
import torch

from executor import BIN

OPTIONS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight-decay": 0.1}
ELEMENTS, STEPS = 1 << 16, 30
CLOSE = 1.005   # of an error's root mean square; two roundings of equally many bits differ by less
E4M3 = torch.float8_e4m3fn


def dynamic_map(signed, bits=8, decades=7):
    """Cells of a decade have their middles as values: 2^k cells for each sign in decade k, unsigned twice as many; 0 and 1."""
    values = [0.0, 1.0]
    for k in range(decades):
        exponents = k + (bits - 1 - decades) + (0 if signed else 1)
        edges = numpy.linspace(0.1, 1, 2**exponents + 1) * 10.0 ** (k - decades + 1)
        middles = (edges[:-1] + edges[1:]) / 2
        values += list(middles) + (list(-middles) if signed else [])
    return numpy.sort(numpy.array(values))


def in_blocks(values, block, largest):
    """Blocks of numbers of which the largest magnitude is `largest`, and the scale of each block."""
    blocks = values.reshape(-1, block)
    scale = numpy.abs(blocks).max(axis=1, keepdims=True) / largest
    return blocks / numpy.where(scale == 0, 1, scale), scale


@dataclass(frozen=True)
class Quantizer:
    block: int
    first: numpy.ndarray
    second: numpy.ndarray

    def rounded(self, values, table):
        x, scale = in_blocks(values, self.block, 1)
        borders = (table[1:] + table[:-1]) / 2
        return (table[numpy.searchsorted(borders, x)] * scale).reshape(-1)


@dataclass(frozen=True)
class Floating:
    """Numbers of two dtypes in blocks, each block's largest magnitude as the dtype's largest number."""

    block: int
    first: torch.dtype
    second: torch.dtype

    def rounded(self, values, dtype):
        x, scale = in_blocks(values, self.block, torch.finfo(dtype).max)
        rounded = torch.from_numpy(x).float().to(dtype)
        return (rounded.double().numpy() * scale).reshape(-1)


@dataclass(frozen=True)
class Scaled:
    """Numbers of two dtypes, each moment's times a power of two: the least that brings its largest magnitude into the dtype."""

    first: torch.dtype
    second: torch.dtype
    scaled: bool = True
    block = 1   # of what may be rounded at once: any tensor

    def rounded(self, values, dtype):
        largest = numpy.abs(values).max()
        scale = 2.0 ** numpy.ceil(numpy.log2(largest / torch.finfo(dtype).max)) if self.scaled and largest > 0 else 1.0
        return torch.from_numpy(values / scale).to(torch.float32).to(dtype).double().numpy() * scale


FORMS = {"adamw-8bit": Quantizer(256, dynamic_map(True), dynamic_map(False)),
         "adamw-4bit": Quantizer(128, dynamic_map(True, bits=4, decades=3), numpy.arange(1, 17) / 16),
         "adamw-fp8-blocks": Floating(256, E4M3, E4M3),
         "adamw-fp8": Scaled(E4M3, torch.float16)}


def mistakes(form):
    """Other definitions, whose difference must be noticed."""
    if isinstance(form, Scaled):
        return {"no scale": Scaled(form.first, form.second, scaled=False), "first moments in e5m2": Scaled(torch.float8_e5m2, form.second), "second moments in e4m3": Scaled(E4M3, E4M3)}
    if isinstance(form, Floating):
        return {"blocks of 4096": Floating(4096, E4M3, E4M3), "moments in e5m2": Floating(form.block, torch.float8_e5m2, torch.float8_e5m2)}
    return {"blocks of 4096": Quantizer(4096, form.first, form.second), "signed second moments": Quantizer(form.block, form.first, form.first)}


def adamw(parameters, gradients, quantizer=None):
    """In double; states are rounded after each update, if at all."""
    o = OPTIONS
    p = parameters.astype(numpy.float64)
    m, v = numpy.zeros_like(p), numpy.zeros_like(p)
    for step, g in enumerate(gradients.astype(numpy.float64), 1):
        m, v = o["beta1"] * m + (1 - o["beta1"]) * g, o["beta2"] * v + (1 - o["beta2"]) * g * g
        direction = (m / (1 - o["beta1"] ** step)) / (numpy.sqrt(v / (1 - o["beta2"] ** step)) + o["eps"])
        p = p * (1 - o["lr"] * o["weight-decay"]) - o["lr"] * direction
        if quantizer is not None:
            m, v = quantizer.rounded(m, quantizer.first), quantizer.rounded(v, quantizer.second)
    return p, m, v


def scaled_in_fp32(parameters, gradients):
    """MS-AMP's update with scales of the whole tensor, each operation rounded to fp32: what loops on CPU ranks do bit for bit.
    A second moment that isn't 0 stays so, as docs/optimizers.md says."""
    number = numpy.float32
    o = OPTIONS
    least = number(2.0**-24)   # fp16's
    p, m, v = (x.astype(number) for x in (parameters, 0 * parameters, 0 * parameters))

    def factor(values, dtype):
        return number(2.0 ** numpy.floor(numpy.log2(torch.finfo(dtype).max / numpy.float64(numpy.abs(values).max()))))

    for step, g in enumerate(gradients, 1):
        m = number(o["beta1"]) * m + number(1 - o["beta1"]) * g
        v = number(o["beta2"]) * v + number(1 - o["beta2"]) * g * g
        rate, root = number(o["lr"] / (1 - o["beta1"] ** step)), number(numpy.sqrt(1 - o["beta2"] ** step))
        p = p * number(1 - o["lr"] * o["weight-decay"]) - rate * (m / (numpy.sqrt(v) / root + number(o["eps"])))
        of_m, of_v = factor(m, E4M3), factor(v, torch.float16)
        v = numpy.where(v > 0, numpy.maximum(v * of_v, least), number(0))
        m, v = torch.from_numpy(m * of_m).to(E4M3).float().numpy() / of_m, v.astype(numpy.float16).astype(number) / of_v
    return p, m, v


def problem(seed=1):
    """Gradients of different sizes, element by element and block by block, with rows that get none now and then."""
    random = numpy.random.default_rng(seed)
    sizes = 10.0 ** random.uniform(-4, 0, ELEMENTS // 256).repeat(256) * 10.0 ** random.uniform(-1.5, 0, ELEMENTS)
    gradients = random.standard_normal((STEPS, ELEMENTS)) * sizes
    gradients[:, : 8 * 256][random.random((STEPS, 8 * 256)) < 0.7] = 0
    return random.standard_normal(ELEMENTS).astype(numpy.float32), gradients.astype(numpy.float32)


def ours(optimizer, device, parameters, gradients, dtype="fp32"):
    with tempfile.TemporaryDirectory(prefix="vramfit-states-") as directory:
        given, made = os.path.join(directory, "in"), os.path.join(directory, "out")
        with open(given, "wb") as f:
            f.write(parameters.tobytes() + gradients.tobytes())
        options = ",".join(f"{name}={value}" for name, value in OPTIONS.items())
        subprocess.run([os.path.join(BIN, "update_flat"), optimizer, dtype, device, str(len(parameters)), str(len(gradients)), options, given, made], check=True)
        return numpy.fromfile(made, dtype=numpy.float32).astype(numpy.float64).reshape(-1, len(parameters))


def errors(result, truth):
    """Of parameters and states: root mean squares of what is off, those of states relative to a block's largest."""
    p, m, v = (a.reshape(-1, 256) for a in result)
    tp, tm, tv = (a.reshape(-1, 256) for a in truth)

    def rms(a, t, scaled):
        scale = numpy.abs(t).max(axis=1, keepdims=True) if scaled else 1.0
        return float(numpy.sqrt((((a - t) / scale) ** 2).mean()))

    return {"parameters": rms(p, tp, False), "exp_avg": rms(m, tm, True), "exp_avg_sq": rms(v, tv, True)}


def held(what, own, other, factor=CLOSE):
    ok = all(own[name] <= factor * other[name] for name in own)
    print(f"{'ok  ' if ok else 'FAIL'} {what}: " + ", ".join(f"{name} {own[name]:.3g} (theirs {other[name]:.3g})" for name in own), flush=True)
    return ok


def states():
    parameters, gradients = problem()
    truth = adamw(parameters, gradients)
    ok = True
    for optimizer, form in FORMS.items():
        defined = errors(adamw(parameters, gradients, form), truth)
        for device in ("cpu", "cuda"):
            own = errors(ours(optimizer, device, parameters, gradients), truth)
            ok &= held(f"{optimizer} for {device} beside its definition", own, defined)
            for name, run in library_updates(optimizer).items():
                ok &= held(f"{optimizer} for {device} beside {name}", own, errors(run(parameters, gradients), truth))
        if isinstance(form, Scaled):
            same = all((a == b).all() for a, b in zip(ours(optimizer, "cpu", parameters, gradients), scaled_in_fp32(parameters, gradients)))
            print(f"{'ok  ' if same else 'FAIL'} {optimizer} for cpu: equal to MS-AMP's update in fp32", flush=True)
            ok &= same
        for mistake, wrong in mistakes(form).items():
            made = errors(adamw(parameters, gradients, wrong), truth)
            noticed = any(made[name] > 1.2 * CLOSE * defined[name] for name in made)
            print(f"{'ok  ' if noticed else 'FAIL'} {optimizer}, mistake noticed: {mistake}", flush=True)
            ok &= noticed
    return ok


def by_definition(form):
    """The reference's AdamW whose states are rounded after each update, tensor by tensor."""
    class Rounded(reference.AdamW):
        def step(self, gradients, lr):
            super().step(gradients, lr)
            for moments, table in ((self.m, form.first), (self.v, form.second)):
                for moment in moments.values():
                    flat = torch.nn.functional.pad(moment.reshape(-1), (0, -moment.numel() % form.block))
                    rounded = torch.from_numpy(form.rounded(flat.numpy(), table)).float()
                    moment.copy_(rounded[:moment.numel()].view_as(moment))
    return Rounded


def losses():
    from executor import Case, Workplace
    from parity import HYPER
    place, case = Workplace("llama"), Case("llama")
    hyper = HYPER.with_(steps=200, lr=2e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, warmup=10)
    reference.OPTIMIZERS.update({name: by_definition(form) for name, form in FORMS.items()})

    def last(of, optimizer):
        run = of(case, hyper.with_(optimizer=optimizer))
        loss = sum(run.losses[-20:]) / 20
        print(f"{of.__name__} with {optimizer}: loss {run.losses[0]:.4f}, then {loss:.4f} over the last 20 of {len(run.losses)} steps", flush=True)
        return loss

    def close(a, b):
        return abs(a - b) <= 0.01 * b

    theirs = {optimizer: last(place.reference, optimizer) for optimizer in FORMS}
    own = {optimizer: last(place.executor, optimizer) for optimizer in FORMS}
    ok = all(close(own[optimizer], theirs[optimizer]) for optimizer in FORMS)
    print("ok  " if ok else "FAIL", "within 1 % of the definition's", flush=True)
    whole = last(place.executor, "adamw")
    is_near = all(close(own[optimizer], whole) for optimizer in ("adamw-fp8", "adamw-fp8-blocks"))
    print("ok  " if is_near else "FAIL", "states in FP8 within 1 % of adamw with states in fp32", flush=True)
    return ok and is_near


def by_torch(make):
    """Updates by a library's optimizer, and the states that `make` reads from it."""
    def run(parameters, gradients):
        parameter = torch.nn.Parameter(torch.from_numpy(parameters.copy()).reshape(-1, 256))
        optimizer, read = make(parameter)
        for gradient in gradients:
            parameter.grad = torch.from_numpy(gradient.copy()).reshape(-1, 256)
            optimizer.step()
        return [t.detach().double().reshape(-1).numpy() for t in (parameter, *read(optimizer.state[parameter]))]
    return run


def library_updates(optimizer):
    """Those that the libraries for this form of states have."""
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    import bitsandbytes
    import torchao.optim
    o = {"lr": OPTIONS["lr"], "betas": (OPTIONS["beta1"], OPTIONS["beta2"]), "eps": OPTIONS["eps"], "weight_decay": OPTIONS["weight-decay"]}

    def of_torchao(kind):
        return lambda parameter: (kind([parameter], **o), lambda state: (state["exp_avg"].dequantize(), state["exp_avg_sq"].dequantize()))

    def of_bitsandbytes(parameter):
        def value(state, number):
            codes, absmax, table = state[f"state{number}"], state[f"absmax{number}"], state[f"qmap{number}"]
            return table[codes.reshape(-1).long()].reshape(-1, 256) * absmax.reshape(-1, 1)
        return bitsandbytes.optim.AdamW8bit([parameter], **o), lambda state: (value(state, 1), value(state, 2))

    makers = {"adamw-8bit": {"torchao": of_torchao(torchao.optim.AdamW8bit), "bitsandbytes": of_bitsandbytes},
              "adamw-4bit": {"torchao": of_torchao(torchao.optim.AdamW4bit)},
              "adamw-fp8-blocks": {"torchao": of_torchao(torchao.optim.AdamWFp8)}}
    return {name: by_torch(make) for name, make in makers.get(optimizer, {}).items()}


if __name__ == "__main__":
    sys.exit(0 if {"states": states, "losses": losses}[sys.argv[1]]() else 1)
