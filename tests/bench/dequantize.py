"""Making NF4 whole on 2 cores, beside bitsandbytes and a plain copy of what is made, by turns; the best of several.

GB/s count what is written: 4 bytes an element in fp32, 2 in bf16. bitsandbytes returns a new tensor; malloc keeps its memory here, so
that it isn't fetched page by page each time.
"""

import logging
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

logging.disable(logging.WARNING)
import bitsandbytes.functional as bnb  # noqa: E402

ROWS, COLUMNS, TURNS, ROUNDS = 4096, 4096, 4, 10


def own(form, dtype):
    made = subprocess.run([os.path.join(BIN, "quantize_flat"), "time", form, dtype, str(ROWS * COLUMNS)], check=True, capture_output=True, text=True)
    return [float(word) for word in made.stdout.split()]


def theirs(form, dtype):
    codes, state = bnb.quantize_4bit(torch.randn(ROWS, COLUMNS).to(dtype), quant_type="nf4", compress_statistics=form == "nf4-double")
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        bnb.dequantize_4bit(codes, state)
        best = min(best, time.perf_counter() - begin)
    return best


def main():
    torch.set_num_threads(THREADS)
    print(f"{'format':<12}{'dtype':<7}{'vramfit':>14}{'bitsandbytes':>16}{'copy':>14}{'of theirs':>12}{'of the copy':>13}")
    for form in ("nf4", "nf4-double"):
        for name, dtype, size in (("fp32", torch.float32, 4), ("bf16", torch.bfloat16, 2)):
            mine, copy, other = float("inf"), float("inf"), float("inf")
            for _ in range(TURNS):
                a, b = own(form, name)
                mine, copy, other = min(mine, a), min(copy, b), min(other, theirs(form, dtype))
            speeds = [size * ROWS * COLUMNS / seconds / 1e9 for seconds in (mine, other, copy)]
            print(f"{form:<12}{name:<7}{speeds[0]:>9.1f} GB/s{speeds[1]:>11.1f} GB/s{speeds[2]:>9.1f} GB/s{speeds[0] / speeds[1]:>12.2f}{speeds[0] / speeds[2]:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
