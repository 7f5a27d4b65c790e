"""AdamW, 30 updates of a flat tensor, beside torch.optim.AdamW and torchao's CPUOffloadOptimizer: in fp32, parameters and both averages
within 1e-6, in each of PyTorch's forms; its forms of calls in bf16 to the bit on CPU ranks. An update from an offloaded state is that one (run/offload compares them to the bit).

Parameters in fp16 with averages in fp32 or bf16, which torch.optim.AdamW doesn't have: to the bit the update written out in fp32 whose
parameters are rounded to fp16 after each step; and beside torch's AdamW over fp32 masters, averages within 1e-6 (in fp32), parameters
within what the roundings of so many steps can add up to. torch's AdamW over fp16 parameters, whose averages are fp16, is further off.

Gradients of another dtype than the parameters: in fp32 with gradients of 16 bits, within 1e-6 torch's fp32 AdamW on gradients rounded to
that dtype, and further off on gradients that aren't; parameters of 16 bits with fp32 gradients to the bit the update written out in fp32.

CPUOffloadOptimizer wants a GPU. Here its GPU is the host: parameters are CPU tensors, and streams, events and pinning do nothing.
"""

import contextlib
import sys
from unittest import mock

import numpy
import torch

from block_states import OPTIONS, ours, problem

LIMIT = 1e-6
ROWS, COLUMNS = 256, 256   # above the 4096 elements below which CPUOffloadOptimizer leaves a parameter on the GPU
ADAMW = {"lr": OPTIONS["lr"], "betas": (OPTIONS["beta1"], OPTIONS["beta2"]), "eps": OPTIONS["eps"], "weight_decay": OPTIONS["weight-decay"]}


class NoStream:
    """Of a device that does everything at once."""

    def wait_stream(self, other):
        pass

    def record_event(self):
        return self

    def synchronize(self):
        pass


@contextlib.contextmanager
def host_as_gpu():
    import torchao.optim.cpu_offload as offload
    empty_like = torch.empty_like

    def unpinned(tensor, pin_memory=False, **options):
        return empty_like(tensor, **options)

    with mock.patch.object(offload, "get_available_devices", lambda: ["cpu", "cuda"]), mock.patch.object(torch.cuda, "Stream", NoStream), \
            mock.patch.object(torch.cuda, "current_stream", NoStream), mock.patch.object(torch.cuda, "stream", lambda stream: contextlib.nullcontext()), \
            mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None), mock.patch.object(torch, "empty_like", unpinned):
        yield


def updated(parameters, gradients, make, states, dtype=torch.float32):
    """Parameters and averages after a backward pass and a step for each gradient."""
    parameter = torch.nn.Parameter(torch.from_numpy(parameters.copy()).reshape(ROWS, COLUMNS).to(dtype))
    optimizer = make(parameter)
    for gradient in gradients:
        (parameter * torch.from_numpy(gradient).reshape(ROWS, COLUMNS).to(dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = states(optimizer, parameter)
    return [t.detach().double().reshape(-1).numpy() for t in (parameter, state["exp_avg"], state["exp_avg_sq"])]


def by_torch(parameters, gradients, dtype=torch.float32, **form):
    return updated(parameters, gradients, lambda p: torch.optim.AdamW([p], **(form or {"fused": True}), **ADAMW), lambda optimizer, p: optimizer.state[p], dtype)


def by_torchao(offload_gradients):
    def run(parameters, gradients):
        from torchao.optim import CPUOffloadOptimizer
        with host_as_gpu():
            return updated(parameters, gradients, lambda p: CPUOffloadOptimizer([p], offload_gradients=offload_gradients, **ADAMW),
                           lambda optimizer, p: optimizer.optim_dict[p].state[optimizer.param_d2h_map[p]])
    return run


def distances(result, truth):
    return [float(numpy.linalg.norm(a - b) / numpy.linalg.norm(b)) for a, b in zip(result, truth, strict=True)]


def rounded(values, dtype):
    return torch.from_numpy(values).to(dtype).float().numpy()


def in_16_bits(parameters, gradients, state, storage=torch.float16):
    """Each operation rounded to fp32, as loops on CPU ranks have them; parameters to `storage` and averages to `state` after each update."""
    number, o = numpy.float32, OPTIONS
    p, m, v = parameters, numpy.zeros_like(parameters), numpy.zeros_like(parameters)
    for step, g in enumerate(gradients, 1):
        m = number(o["beta1"]) * m + number(1 - o["beta1"]) * g
        v = number(o["beta2"]) * v + number(1 - o["beta2"]) * g * g
        rate, root = number(o["lr"] / (1 - o["beta1"] ** step)), number(numpy.sqrt(1 - o["beta2"] ** step))
        p = p * number(1 - o["lr"] * o["weight-decay"]) - rate * (m / (numpy.sqrt(v) / root + number(o["eps"])))
        p, m, v = rounded(p, storage), rounded(m, state), rounded(v, state)
    return [x.astype(numpy.float64) for x in (p, m, v)]


def roundings(start, steps):
    """The most by which parameters of fp16 can be off after so many updates, of which each moves them by the learning rate at most, about,
    and rounds by half of the last place at most."""
    return steps * numpy.maximum(numpy.abs(start) + steps * OPTIONS["lr"], 2.0**-14) * 2.0**-11


def half():
    """Gradients are those of a scaled loss, so that fp16 holds them."""
    parameters, gradients = (rounded(x, torch.float16) for x in problem())
    masters = by_torch(parameters, gradients)
    bound, ok = roundings(parameters.astype(numpy.float64), len(gradients)), True
    for name, state in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        defined = in_16_bits(parameters, gradients, state)
        for device in ("cpu", "cuda"):
            own = ours("adamw", device, parameters, gradients, f"fp16+{name}")
            equal = all((a == b).all() for a, b in zip(own, defined, strict=True))
            share = float((numpy.abs(own[0] - masters[0]) / bound).max())
            off = distances(own, defined)
            # A GPU's calls round each operation, and what lies between two numbers of fp16 or bf16 goes either way.
            good = (equal if device == "cpu" else off[0] <= 2.0**-11) and (name != "fp32" or (share <= 1 and max(distances(own, masters)[1:]) <= LIMIT))
            ok &= good
            print(f"{'ok  ' if good else 'FAIL'} adamw in fp16 with states in {name} for {device}: off its definition by " + ", ".join(f"{x:.1e}" for x in off)
                  + f"; {share:.2f} of what roundings can add up to beside torch's fp32 masters", flush=True)
    small = gradients * 2.0**-13   # squares of most are below what fp16 holds
    small = rounded(small, torch.float16)
    own, masters, theirs = ours("adamw", "cpu", parameters, small, "fp16+fp32"), by_torch(parameters, small), by_torch(parameters, small, torch.float16)
    lost = float((theirs[2] == 0).mean())
    apart = [distances(run, masters)[0] for run in (own, theirs)]
    noticed = apart[1] > 100 * apart[0]
    print(f"{'ok  ' if noticed else 'FAIL'} torch's AdamW with fp16 states: {lost:.0%} of second averages are 0, parameters {apart[1]:.1e} off, ours {apart[0]:.1e}", flush=True)
    return ok and noticed


TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def mixed():
    """Gradients of another dtype than the parameters."""
    parameters, gradients = problem()
    exact, ok = by_torch(parameters, gradients), True
    for name in ("bf16", "fp16"):
        theirs = by_torch(parameters, rounded(gradients, TYPES[name]))
        for device in ("cpu", "cuda"):
            own = ours("adamw", device, parameters, gradients, f"fp32+fp32+{name}")
            off, unrounded = max(distances(own, theirs)), min(distances(own, exact)[1:])
            good = off <= LIMIT and unrounded > 10 * LIMIT
            ok &= good
            print(f"{'ok  ' if good else 'FAIL'} adamw in fp32 with gradients in {name} for {device} beside torch: {off:.1e}; beside whole gradients {unrounded:.1e}", flush=True)
    for storage in ("bf16", "fp16"):
        start = rounded(parameters, TYPES[storage])
        for state in ("fp32", "bf16"):
            defined = in_16_bits(start, gradients, TYPES[state], TYPES[storage])
            narrow = in_16_bits(start, rounded(gradients, TYPES[storage]), TYPES[state], TYPES[storage])
            own = ours("adamw", "cpu", start, gradients, f"{storage}+{state}+fp32")
            good = all((a == b).all() for a, b in zip(own, defined, strict=True)) and not (own[1] == narrow[1]).all()
            ok &= good
            print(f"{'ok  ' if good else 'FAIL'} adamw in {storage} with states in {state} and fp32 gradients: off its definition by "
                  + ", ".join(f"{x:.1e}" for x in distances(own, defined)), flush=True)
    return ok


def main():
    parameters, gradients = problem()
    own = {device: ours("adamw", device, parameters, gradients) for device in ("cpu", "cuda")}
    ok = True
    for name, run in {"torch": by_torch, "torchao, offloaded": by_torchao(False), "torchao, gradients too": by_torchao(True)}.items():
        theirs = run(parameters, gradients)
        for device, result in own.items():
            off = distances(result, theirs)
            ok &= max(off) <= LIMIT
            print(f"{'ok  ' if max(off) <= LIMIT else 'FAIL'} adamw for {device} beside {name}: " + ", ".join(f"{x:.1e}" for x in off), flush=True)
    for name, form in {"adamw:foreach": {"foreach": True}, "adamw:loop": {"foreach": False}}.items():
        for dtype, limits in {"fp32": {"cpu": LIMIT, "cuda": LIMIT}, "bf16": {"cpu": 0.0}}.items():
            theirs = by_torch(parameters, gradients, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], **form)
            for device, limit in limits.items():
                off = distances(ours(name, device, parameters, gradients, dtype), theirs)
                ok &= max(off) <= limit
                print(f"{'ok  ' if max(off) <= limit else 'FAIL'} {name} in {dtype} for {device} beside torch: " + ", ".join(f"{x:.1e}" for x in off), flush=True)
    fewer = by_torch(parameters, gradients[:-1])
    noticed = max(distances(own["cpu"], fewer)) > 10 * LIMIT
    print("ok   noticed:" if noticed else "FAIL not noticed:", "one update less")
    return half() and mixed() and ok and noticed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if main() else 1)
