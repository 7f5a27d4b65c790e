"""Single kernels and copies in PyTorch on a GPU, alone, by CUDA events: the median of 15 calls, each with an L2 that holds nothing of it.

card_kernels.py CARD SECONDS: one JSON object a line, rows as in configs/published/kernels.json, until SECONDS have passed.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CARD, SECONDS = sys.argv[1], float(sys.argv[2])
BEGIN = time.monotonic()
GPU = torch.device("cuda")
L2_BYTES = 256 << 20  # more than any card has
# Rows, columns and what is summed over: of Llamas of 1B, 8B and 70B, and squares.
PRODUCTS = [
    (4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (4096, 4096, 14336), (4096, 1024, 4096), (4096, 28672, 8192), (8192, 14336, 4096),
    (4096, 2048, 2048), (4096, 8192, 2048), (4096, 2048, 8192), (4096, 512, 2048), (1024, 128256, 2048), (1024, 128256, 4096), (2048, 2048, 2048),
    (512, 4096, 4096), (256, 4096, 4096), (16384, 16384, 4096), (2048, 1536, 576), (16384, 1536, 576),
]
LENGTHS = (512, 1024, 2048, 4096, 8192)
TOKENS, HEADS = 8192, 32
BACKENDS = {"FlashAttention-2": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def put(**row):
    print(json.dumps({**row, "card": CARD}), flush=True)


def numbers(*sizes, dtype=torch.bfloat16, **more):
    return torch.randn(*sizes, device=GPU, dtype=dtype, **more)


def seconds_of(call, times=15, warm=4):
    emptied = torch.empty(L2_BYTES, dtype=torch.int8, device=GPU)
    for _ in range(warm):
        call()
    found = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        emptied.zero_()
        torch.cuda._sleep(20000)  # cycles, in which the call is queued
        begin.record()
        call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)


def put_moved(seconds, moved, **row):
    put(**row, bytes=moved, seconds=seconds, gbs=moved / seconds / 1e9)


def products():
    for dtype, name, shapes in ((torch.bfloat16, "bf16", PRODUCTS), (torch.float32, "fp32", PRODUCTS[:3])):
        for rows, columns, inner in shapes:
            a, weight = numbers(rows, inner, dtype=dtype), numbers(columns, inner, dtype=dtype)
            seconds = seconds_of(lambda: F.linear(a, weight))
            put(kind="product", dtype=name, rows=rows, columns=columns, inner=inner, seconds=seconds, tflops=2 * rows * columns * inner / seconds / 1e12)


def fp8_products():
    one = torch.ones((), device=GPU)
    for rows, columns, inner in [*PRODUCTS[:4], (4096, 8192, 2048)]:
        a, weight = numbers(rows, inner).to(torch.float8_e4m3fn), numbers(columns, inner).to(torch.float8_e4m3fn)
        for fast in (True, False):
            seconds = seconds_of(lambda: torch._scaled_mm(a, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=fast))
            put(kind="product", dtype="fp8", rows=rows, columns=columns, inner=inner, fast_accumulation=fast, seconds=seconds, tflops=2 * rows * columns * inner / seconds / 1e12)
    x = numbers(4096, 14336)
    put(kind="eager_cast", bytes=3 * x.numel(), seconds=seconds_of(lambda: (x.float() * one).clamp(-448, 448).to(torch.float8_e4m3fn)))


def attention(kernel, length, head_size):
    batch = max(1, TOKENS // length)
    q, k, v = (numbers(batch, HEADS, length, head_size, requires_grad=True) for _ in range(3))
    flops = 4 * batch * HEADS * length**2 * head_size / 2  # without what the causal mask leaves out
    about = {"kind": "attention", "kernel": kernel, "length": length, "head_size": head_size, "heads": HEADS, "kv_heads": HEADS, "batch": batch, "causal": True}

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def backward():
        q.grad = k.grad = v.grad = None
        output.backward(gradient, retain_graph=True)

    with sdpa_kernel(BACKENDS[kernel]):
        output = forward()
        gradient = torch.randn_like(output)
        for name, call, work in (("fwd", forward, flops), ("bwd", backward, 2.5 * flops)):
            seconds = seconds_of(call)
            put(**about, **{"pass": name}, seconds=seconds, tflops=work / seconds / 1e12)


def attentions():
    for length in LENGTHS:
        for head_size in (128, 64):
            for kernel in BACKENDS:
                attention(kernel, length, head_size)


def memory_bound():
    x = numbers(1 << 28)
    y = torch.empty_like(x)
    put_moved(seconds_of(lambda: y.copy_(x)), 4 * x.numel(), kind="copy")
    put_moved(seconds_of(lambda: torch.add(x, y, out=y)), 6 * x.numel(), kind="memory", what="add")
    for rows, columns in ((4096, 2048), (4096, 4096), (16384, 4096), (8192, 8192)):
        x, weight = numbers(rows, columns, requires_grad=True), torch.ones(columns, device=GPU, dtype=torch.bfloat16, requires_grad=True)
        output = torch.rms_norm(x, (columns,), weight, 1e-5)
        gradient = torch.randn_like(output)
        about = {"kind": "norm", "what": "torch.rms_norm", "rows": rows, "columns": columns}
        put_moved(seconds_of(lambda: torch.rms_norm(x, (columns,), weight, 1e-5)), 4 * x.numel(), **about, **{"pass": "fwd"})
        put_moved(seconds_of(lambda: output.backward(gradient, retain_graph=True)), 8 * x.numel(), **about, **{"pass": "bwd"})
    a, b = numbers(4096, 14336), numbers(4096, 14336)
    put_moved(seconds_of(lambda: F.silu(a)), 4 * a.numel(), kind="memory", what="silu")
    put_moved(seconds_of(lambda: a * b), 6 * a.numel(), kind="memory", what="mul")
    logits, labels = numbers(1024, 128256), torch.randint(0, 128256, (1024,), device=GPU)
    put(kind="memory", what="cross_entropy of float(bf16)", elements=logits.numel(), seconds=seconds_of(lambda: F.cross_entropy(logits.float(), labels)))


def updates():
    for dtype, name, moved in ((torch.float32, "fp32", 28), (torch.bfloat16, "bf16", 14)):
        parameters = [torch.nn.Parameter(numbers(4096, 4096, dtype=dtype)) for _ in range(16)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        elements = sum(parameter.numel() for parameter in parameters)
        for form in ("fused", "foreach"):
            optimizer = torch.optim.AdamW(parameters, lr=1e-4, **{form: True})
            put_moved(seconds_of(optimizer.step, times=8), moved * elements, kind="update", optimizer="adamw", form=form, dtype=name, elements=elements)


def host_link():
    host, device = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True), torch.empty(1 << 30, dtype=torch.uint8, device=GPU)
    for size in (1 << 20, 1 << 24, 1 << 28, 1 << 30):
        put_moved(seconds_of(lambda: device[:size].copy_(host[:size], non_blocking=True), times=7), size, kind="host_link", direction="H2D")
        put_moved(seconds_of(lambda: host[:size].copy_(device[:size], non_blocking=True), times=7), size, kind="host_link", direction="D2H")


def launches():
    x, a, weight = numbers(8), numbers(128, 128), numbers(128, 128)
    for name, call in (("add_", lambda: x.add_(1)), ("linear", lambda: F.linear(a, weight)), ("mul", lambda: x * x)):
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            call()
        put(kind="eager_call", what=name, microseconds=(time.perf_counter() - begin) / 500 * 1e6)
        torch.cuda.synchronize()


def main():
    for part in (products, fp8_products, attentions, memory_bound, updates, host_link, launches):
        if time.monotonic() - BEGIN < SECONDS:
            part()


if __name__ == "__main__":
    main()
