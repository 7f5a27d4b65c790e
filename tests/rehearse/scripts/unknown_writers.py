"""Reads what nobody computes, in code that is not eager: a kernel in Triton, a CUDA graph, and with `compile` a compiled function. `bare`: as if
the library that computes values could not be loaded."""
import sys

import torch
import triton
import triton.language as tl


@triton.jit
def double_it(source, target, count, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(target + places, 2 * tl.load(source + places, mask=places < count), mask=places < count)


def total(x):
    return (x * x).sum()


def main():
    x, y = torch.ones(64, device="cuda"), torch.empty(64, device="cuda")
    if "bare" in sys.argv:
        from vramfit_rehearsal import values
        values.loaded.clear()
    double_it[(1,)](x, y, 64, BLOCK=64)
    if y[0].item() > 0:  # Triton
        print("positive")
    z = torch.zeros(64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        z.add_(x)
    graph.replay()
    if z[0] > 0 and z[0].item() > 0:  # graph
        print("replayed")
    z.fill_(1)
    assert z[0].item() == 1  # known again
    if "compile" in sys.argv and torch.compile(total)(x).item() > 0:  # compiled
        print("compiled")


if __name__ == "__main__":
    main()
