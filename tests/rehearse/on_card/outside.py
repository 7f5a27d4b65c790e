"""What a process takes of a GPU outside PyTorch's allocator: the context, libraries' handles, loaded kernels, communicators. Nothing else may run on the GPU.

outside.py [--only REGEX] [--seconds N]: runs each case in a process of its own; prints one JSON object a line.
"""

import argparse
import ctypes
import json
import os
import re
import socket
import subprocess
import sys
import time

MIB = 1 << 20


class Stages:
    """Used bytes of the GPU, without what PyTorch's allocator has reserved, after each stage."""

    def __init__(self):
        import torch
        self.torch, self.rows = torch, []

    def note(self, name):
        torch = self.torch
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        reserved = torch.cuda.memory_reserved()
        row = {"stage": name, "outside_mib": round((total - free - reserved) / MIB, 3), "used": total - free, "reserved": reserved, "nvml": nvml_used(), "nvml_process": nvml_process()}
        self.rows.append(row)


def nvml_used():
    try:
        import pynvml
        pynvml.nvmlInit()
        info = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0), version=pynvml.nvmlMemory_v2)
        return {"total": info.total, "used": info.used, "reserved": info.reserved, "free": info.free}
    except Exception as error:  # pylint: disable=broad-exception-caught
        return {"error": repr(error)}


def nvml_process():
    try:
        import pynvml
        return [[p.pid, p.usedGpuMemory] for p in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))]
    except Exception as error:  # pylint: disable=broad-exception-caught
        return repr(error)


def pair(torch, dtype, size=1024):
    return [torch.full((size, size), 0.01, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2)]


def context(stages, torch):
    torch.zeros(1, device="cuda")
    stages.note("context and first fill")


def products(stages, torch):
    context(stages, torch)
    for dtype in (torch.bfloat16, torch.float32, torch.float16):
        a, b = pair(torch, dtype)
        c = a @ b
        stages.note(f"product {dtype}")
        c.sum().backward()
        stages.note(f"product {dtype}, backward")
    a, b = pair(torch, torch.bfloat16, 4096)
    (a @ b).sum().backward()
    stages.note("larger product bfloat16")
    torch.baddbmm(torch.zeros(8, 128, 128, device="cuda"), torch.ones(8, 128, 64, device="cuda"), torch.ones(8, 64, 128, device="cuda"))
    stages.note("batched product float32")


def lt(stages, torch):
    context(stages, torch)
    layer = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    layer(torch.ones(256, 1024, device="cuda", dtype=torch.bfloat16))
    stages.note("linear with bias bfloat16")
    a = torch.ones(256, 1024, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones(1, device="cuda")
    torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    stages.note("product float8 (cuBLASLt)")


def attention(name):
    def case(stages, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        context(stages, torch)
        q, k, v = (torch.full((1, 16, 1024, 64), 0.01, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        stages.note("fill bfloat16")
        with sdpa_kernel([getattr(SDPBackend, name)]):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            stages.note(f"{name}, forward")
            out.sum().backward()
            stages.note(f"{name}, backward")
    return case


def convolution(stages, torch):
    context(stages, torch)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda", dtype=torch.bfloat16)
    out = layer(torch.ones(8, 64, 56, 56, device="cuda", dtype=torch.bfloat16, requires_grad=True))
    stages.note("convolution, forward")
    out.sum().backward()
    stages.note("convolution, backward")


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def communicator(stages, torch):
    import torch.distributed as dist
    torch.cuda.set_device(0)
    context(stages, torch)
    dist.init_process_group("nccl", init_method=f"tcp://localhost:{free_port()}", rank=0, world_size=1, device_id=torch.device("cuda", 0) if os.environ.get("EAGER_NCCL") else None)
    stages.note("init_process_group")
    a = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(a)
    stages.note("all_reduce")
    dist.all_gather_into_tensor(torch.empty_like(a), a)
    dist.reduce_scatter_tensor(torch.empty_like(a), a)
    stages.note("all_gather, reduce_scatter")
    group = dist.new_group([0])
    dist.all_reduce(a, group=group)
    stages.note("another group")
    dist.destroy_process_group()
    stages.note("destroyed")


def kernel_of_triton(stages, torch):
    import triton_kernel
    context(stages, torch)
    x = torch.ones(1 << 20, device="cuda")
    stages.note("fill float32")
    triton_kernel.double(x)
    stages.note("kernel of Triton")
    torch.compile(lambda t: torch.nn.functional.gelu(t * 2) + 1)(x)
    stages.note("compiled function")


def training(stages, torch):
    """A step of a small model of PyTorch alone, with each of AdamW's forms."""
    torch.zeros(1, device="cuda")
    stages.note("context and first fill")
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True, device="cuda")
    head = torch.nn.Linear(1024, 32000, device="cuda")
    stages.note("weights")
    parameters = [*layer.parameters(), *head.parameters()]
    for kind in ("fused", "foreach"):
        optimizer = torch.optim.AdamW(parameters, **{kind: True})
        for step in (1, 2):
            ids = torch.zeros(2, 512, dtype=torch.int64, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                out = head(layer(torch.ones(2, 512, 1024, device="cuda")))
                loss = torch.nn.functional.cross_entropy(out.flatten(0, 1).float(), ids.flatten())
            stages.note(f"{kind}, step {step}: forward")
            loss.backward()
            stages.note(f"{kind}, step {step}: backward")
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            stages.note(f"{kind}, step {step}: optimizer")


def quantized(stages, torch):
    import bitsandbytes
    context(stages, torch)
    layer = bitsandbytes.nn.Linear4bit(1024, 1024, compute_dtype=torch.bfloat16, quant_type="nf4").cuda()
    layer(torch.ones(64, 1024, device="cuda", dtype=torch.bfloat16))
    stages.note("4-bit layer of bitsandbytes")
    weight = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
    for kind in (bitsandbytes.optim.AdamW8bit, bitsandbytes.optim.PagedAdamW8bit):
        weight.grad = torch.ones_like(weight)
        kind([weight]).step()
        stages.note(kind.__name__)


def allocations(stages, torch):
    """How much of the GPU cudaMalloc takes for so many bytes, and PyTorch's segments for a tensor."""
    context(stages, torch)
    runtime = ctypes.CDLL("libcudart.so.13")
    rows = []
    for size in (1, 1, 1, 256 << 10, 512 << 10, 1 * MIB - 512, 1 * MIB, 1 * MIB + 1, 2 * MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB, 5 * MIB, 20 * MIB, 64 * MIB + 1, 1 << 30):
        before = torch.cuda.mem_get_info()[0]
        pointer = ctypes.c_void_p()
        status = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        rows.append([size, status, before - torch.cuda.mem_get_info()[0], pointer.value])
    stages.rows.append({"stage": "cudaMalloc: bytes, status, taken, address", "rows": rows})
    rows = []
    for size in (1, 1 * MIB, 2 * MIB, 10 * MIB, 11 * MIB, 21 * MIB + 1):
        before, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
        kept = torch.empty(size, dtype=torch.uint8, device="cuda")
        rows.append([size, torch.cuda.memory_reserved() - reserved, before - torch.cuda.mem_get_info()[0], kept.data_ptr()])
        stages.kept = [*getattr(stages, "kept", []), kept]
    stages.rows.append({"stage": "tensors: bytes, reserved, taken, address", "rows": rows})


def everything(stages, torch):
    """Tensors until the GPU is full: how much can be reserved, and what the message says."""
    context(stages, torch)
    kept, message = [], ""
    for size in (1 << 30, 64 * MIB, 20 * MIB, 2 * MIB):
        try:
            while True:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            message = str(error)
            stages.note(f"full of {size / MIB:.0f} MiB")
    stages.rows.append({"stage": "message", "message": message})
    try:
        a, b = pair(torch, torch.bfloat16, 256)
        a @ b
        stages.note("product on a full GPU")
    except Exception as error:  # pylint: disable=broad-exception-caught
        stages.rows.append({"stage": "product on a full GPU", "error": repr(error)})


def graph(stages, torch):
    context(stages, torch)
    a, b = pair(torch, torch.bfloat16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a @ b
    torch.cuda.current_stream().wait_stream(side)
    stages.note("product on another stream")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(100):
            a @ b
    stages.note("graph of 100 products, captured")
    captured.replay()
    stages.note("replayed")


EAGER = {"CUDA_MODULE_LOADING": "EAGER"}
LAZY = {"CUDA_MODULE_LOADING": "LAZY"}
CASES = [
    ("context", context, {}), ("training", training, {}), ("products", products, {}), ("allocations", allocations, {}), ("communicator", communicator, {}), ("everything", everything, {}),
    ("flash", attention("FLASH_ATTENTION"), {}), ("cudnn", attention("CUDNN_ATTENTION"), {}), ("efficient", attention("EFFICIENT_ATTENTION"), {}), ("convolution", convolution, {}), ("lt", lt, {}),
    ("context-eager", context, EAGER), ("training-eager", training, EAGER), ("triton", kernel_of_triton, {}), ("quantized", quantized, {}), ("communicator-eager-init", communicator, {"EAGER_NCCL": "1"}),
    ("graph", graph, {}), ("context-lazy", context, LAZY), ("training-expandable", training, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    ("everything-expandable", everything, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
]


def play(name):
    stages, error = Stages(), None
    import torch
    case = next(function for case, function, _ in CASES if case == name)
    try:
        case(stages, torch)
    except Exception as problem:  # pylint: disable=broad-exception-caught
        error = repr(problem)[:2000]
    print(json.dumps({"case": name, "error": error, "stages": stages.rows}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    if options.case:
        play(options.case)
        return
    begin = time.monotonic()
    print(json.dumps({"case": "no process", "nvml": nvml_used()}), flush=True)
    for name, _, changes in CASES:
        if not re.fullmatch(options.only or ".*", name):
            continue
        if time.monotonic() - begin > options.seconds:
            print(json.dumps({"case": name, "error": "not begun"}), flush=True)
            continue
        start = time.monotonic()
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "--case", name], env={**os.environ, **changes}, capture_output=True, text=True, timeout=60, check=False)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            row = json.loads(lines[-1]) if lines else {"case": name, "error": done.stderr[-1500:]}
        except subprocess.TimeoutExpired:
            row = {"case": name, "error": "took over 60 s"}
        print(json.dumps({**row, "environment": changes, "seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
