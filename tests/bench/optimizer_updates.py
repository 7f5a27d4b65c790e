"""One update of a flat tensor by each optimizer on 2 cores, beside the libraries that people use for it: the engine's loops,
torch's fused AdamW, torchao's compiled low-bit AdamW and bitsandbytes' 8-bit AdamW, by turns; the best of several. Figures, not a test.

ns are of one element. torch's fused AdamW takes states of the parameters' dtype alone, so what stands beside the engine's bf16
parameters with fp32 states is torch's with everything in fp32, and with everything in bf16.

    VRAMFIT_BIN_DIR=build/release/bin .venv/bin/python tests/bench/optimizer_updates.py
"""

import os
import subprocess
import sys
import time

THREADS = 2
SETTINGS = {"OMP_NUM_THREADS": str(THREADS), "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
if any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | SETTINGS)

import torch  # noqa: E402

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle"))
from executor import BIN  # noqa: E402

ROWS, COLUMNS, TURNS, STEPS = 4096, 4096, 10, 6
ELEMENTS = ROWS * COLUMNS


def own(optimizer, dtype):
    command = [os.path.join(BIN, "update_flat"), "time", optimizer, dtype, str(ELEMENTS), str(STEPS)]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def theirs(make, dtype):
    """Seconds of the fastest step; the first, which makes states and may compile, isn't among them."""
    parameter = torch.nn.Parameter(torch.randn(ROWS, COLUMNS).to(dtype))
    parameter.grad = torch.randn(ROWS, COLUMNS).to(dtype)
    optimizer = make([parameter])
    optimizer.step()

    def measure():
        best = float("inf")
        for _ in range(STEPS):
            begin = time.perf_counter()
            optimizer.step()
            best = min(best, time.perf_counter() - begin)
        return best

    return measure


def pairs():
    """(what is compared, the engine's, the library's), the latter two as functions that measure."""
    def fused(parameters):
        return torch.optim.AdamW(parameters, lr=1e-3, fused=True)

    yield "adamw fp32, torch's fused", own("adamw", "fp32"), theirs(fused, torch.float32)
    yield "adamw bf16, torch's fused", own("adamw", "bf16"), theirs(fused, torch.bfloat16)
    yield "adamw bf16+fp32, torch's fused in fp32", own("adamw", "bf16+fp32"), theirs(fused, torch.float32)
    yield "adamw bf16+fp32, torch's fused in bf16", own("adamw", "bf16+fp32"), theirs(fused, torch.bfloat16)
    try:
        import torchao.optim
        kinds = {"adamw-8bit": torchao.optim.AdamW8bit, "adamw-4bit": torchao.optim.AdamW4bit}
        for optimizer, kind in kinds.items():
            for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
                yield f"{optimizer} {name}, torchao", own(optimizer, name), theirs(lambda p, kind=kind: kind(p, lr=1e-3), dtype)
    except ImportError as error:
        print(f"torchao is left out: {error}")
    try:
        import bitsandbytes
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            yield f"adamw-8bit {name}, bitsandbytes", own("adamw-8bit", name), theirs(lambda p: bitsandbytes.optim.AdamW8bit(p, lr=1e-3), dtype)
    except ImportError as error:
        print(f"bitsandbytes is left out: {error}")


def main():
    torch.set_num_threads(THREADS)
    print("| update | engine | theirs | engine / theirs |\n|-|-|-|-|")
    for what, mine, other in pairs():
        times = [(mine(), other()) for _ in range(TURNS)]
        a, b = (min(side) * 1e9 / ELEMENTS for side in zip(*times))
        print(f"| {what} | {a:.2f} ns | {b:.2f} ns | {a / b:.2f} |", flush=True)


if __name__ == "__main__":
    main()
