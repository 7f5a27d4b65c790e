"""AdamW, 30 updates of a flat tensor, beside torch.optim.AdamW and torchao's CPUOffloadOptimizer: in fp32, parameters and both averages
within 1e-6, in each of PyTorch's forms; its forms of calls in bf16 to the bit on CPU ranks. An update from an offloaded state is that one (run/offload compares them to the bit).

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
    return ok and noticed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if main() else 1)
