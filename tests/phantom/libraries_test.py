"""PyTorch's calls into cuBLAS, cuDNN and the others succeed on a phantom card, and allocate what real ones are known to."""
import os
import re
import sys

from phantom_session import run

# Each is one line of Python; `d` is the device. A loss's backward runs too, on autograd's thread.
CALLS = {
    "linear": "torch.nn.Linear(64, 32, device=d)(torch.randn(8, 64, device=d, requires_grad=True)).sum().backward()",
    "bmm": "torch.bmm(torch.randn(4, 8, 16, device=d), torch.randn(4, 16, 8, device=d))",
    "fp8 matmul": "torch._scaled_mm(torch.zeros(64, 128, device=d).to(torch.float8_e4m3fn), torch.zeros(32, 128, device=d)"
                  ".to(torch.float8_e4m3fn).t(), scale_a=torch.ones((), device=d), scale_b=torch.ones((), device=d), "
                  "out_dtype=torch.bfloat16)",
    "int8 matmul": "torch._int_mm(torch.ones(32, 64, device=d, dtype=torch.int8), torch.ones(64, 32, device=d, dtype=torch.int8))",
    "flash attention": "attend('FLASH_ATTENTION')",
    "efficient attention": "attend('EFFICIENT_ATTENTION')",
    "cuDNN attention": "attend('CUDNN_ATTENTION')",
    "math attention": "attend('MATH')",
    "convolution": "torch.nn.Conv2d(3, 16, 3).to(d)(torch.randn(2, 3, 16, 16, device=d, requires_grad=True)).sum().backward()",
    "transposed": "torch.nn.ConvTranspose2d(8, 4, 2).to(d)(torch.randn(2, 8, 8, 8, device=d, requires_grad=True)).sum().backward()",
    "batch norm": "torch.nn.BatchNorm2d(16).to(d)(torch.randn(4, 16, 8, 8, device=d, requires_grad=True)).sum().backward()",
    "lstm": "torch.nn.LSTM(32, 64, 2, bidirectional=True, dropout=0.1).to(d)(torch.randn(7, 4, 32, device=d))[0].sum().backward()",
    "gru": "torch.nn.GRU(32, 64).to(d)(torch.randn(7, 4, 32, device=d))[0].sum().backward()",
    "solve": "torch.linalg.solve(torch.randn(8, 8, device=d), torch.randn(8, 3, device=d))",
    "svd": "torch.linalg.svd(torch.randn(8, 8, device=d))",
    "fft": "torch.fft.rfft2(torch.randn(4, 32, 32, device=d))",
    "sparse": "torch.sparse.mm(torch.eye(8).to_sparse_csr().to(d), torch.randn(8, 4, device=d))",
}

PROGRAM = """
import json, torch, warnings
from torch.nn.attention import SDPBackend, sdpa_kernel
warnings.simplefilter("ignore")
d = "cuda"

def attend(backend):
    q, k, v = (torch.randn(2, 8, 512, 64, device=d, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    with sdpa_kernel(getattr(SDPBackend, backend)):
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

failed = {}
for name, text in CALLS.items():
    try:
        exec(text)
        torch.cuda.synchronize()
    except Exception as problem:
        failed[name] = f"{type(problem).__name__}: {problem}".splitlines()[0]

# What host code alone decides: the autograd thread's handle has a workspace of its own, and cuDNN's frontend asks for dQ in fp32 and
# a number a row besides the gradients, and with shared keys and values those of all heads.
def requested_by_backward(kv_heads):
    torch.cuda.empty_cache()
    q, k, v = (torch.randn(2, heads, 512, 64, device=d, dtype=torch.bfloat16, requires_grad=True) for heads in (8, kv_heads, kv_heads))
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv_heads < 8)
    gradient = torch.ones_like(out)
    requested = lambda moment: torch.cuda.memory_stats()[f"requested_bytes.all.{moment}"]
    before = requested("current")
    torch.cuda.reset_peak_memory_stats()
    out.backward(gradient)
    return requested("peak") - before

print(json.dumps({"failed": failed, "cudnn_backward": [requested_by_backward(kv_heads) for kv_heads in (8, 2)], "torch": [int(n) for n in torch.__version__.split(".")[:2]],
                  "version": torch.__version__.split("+")[0], "compiled_for": torch._C._cuda_getArchFlags().split()}))
"""

WORKSPACES = """
import json, torch
a = torch.randn(256, 256, device="cuda", requires_grad=True)
before = torch.cuda.memory_allocated()
b = torch.mm(a, a)
forward = torch.cuda.memory_allocated() - before - b.nbytes
b.backward(torch.ones_like(b))
print(json.dumps([forward, torch.cuda.memory_allocated() - before - b.nbytes - a.grad.nbytes - forward]))
"""

# A product reads a and writes b: what was uploaded is still known, what nobody computed is 0 and counted. A graph that captured a
# product is not empty, or PyTorch warns.
CONTENTS = """
import json, torch, warnings
warnings.simplefilter("error")
a = torch.eye(8).cuda()
b = torch.empty(8, 8, device="cuda")
torch.mm(a, a, out=b)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.mm(a, a, out=b)
graph.replay()
print(json.dumps([torch.equal(a.cpu(), torch.eye(8)), b.cpu().abs().sum().item()]))
"""


# What a convolution of 3 x 3 over 64 channels works in, and what a GRU keeps for backward: 6 numbers for each of its output.
ROOM = """
import json, torch
layer, x = torch.nn.Conv2d(64, 64, 3, padding=1).cuda(), torch.randn(8, 64, 64, 64, device="cuda")
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
y = layer(x)
taken = torch.cuda.max_memory_allocated() - before - y.nbytes
layer, x = torch.nn.GRU(32, 64).cuda(), torch.randn(128, 16, 32, device="cuda")
with torch.no_grad():
    layer(x)
requested = lambda: torch.cuda.memory_stats()["requested_bytes.all.current"]
before = requested()
out, last = layer(x)
print(json.dumps([taken, requested() - before - out.nbytes - last.nbytes]))
"""


def taken_workspaces():
    """They count as 0, or as their bound if the setting says so."""
    reserve = 6 * 128 * 16 * 64 * 4
    (zero, kept), record = run(ROOM)
    bound = record["workspaces"]["cuDNN convolution"]
    spectra = 8 * (128 * 128 // 2 + 1) * (2 * 8 * 64 + 64 * 64)  # 66 points a side: 128
    (taken, _), _ = run(ROOM, workspaces="bound")
    found = []
    if not reserve <= kept <= reserve + 4096:
        found.append(f"a GRU keeps {kept} bytes for backward, not {reserve}")
    if zero != 0 or not spectra < bound < 1.2 * spectra or not bound <= taken < bound + (2 << 20):
        found.append(f"a convolution takes {zero} bytes, and {taken} with the bound {bound}")
    return found


def declared():
    """The PyTorch release that estimates are made for, and the architectures that they take its kernels to be compiled for."""
    with open(os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "job/cluster/precision_support.h"), encoding="utf-8") as header:
        text = header.read()
    version = re.search(r'kTorchVersion = "(.*)"', text)[1]
    return version, [f"sm_{number}" for number in re.search(r"kTorchArchitectures\{(.*)\}", text)[1].split(", ")]


def main():
    problems = []
    answer, record = run(f"CALLS = {CALLS!r}\n{PROGRAM}")
    problems += [f"{name}: {what}" for name, what in answer["failed"].items()]

    elements, rows = 2 * 8 * 512 * 64, 2 * 8 * 512
    workspace = 4 * elements + 4 * rows + 256  # dQ in fp32, a sum a row, the engine's own
    expected = [3 * 2 * elements + workspace, (2 + 2 * 2 // 4) * elements + workspace + 2 * 2 * elements]  # dK and dV of all heads
    if answer["cudnn_backward"] != expected:
        problems.append(f"cuDNN attention's backward took {answer['cudnn_backward']} bytes, not {expected}")

    # Nobody knows these workspaces, and the record says so, with a bound where there is one.
    bounds = record["workspaces"]
    for name in ("cuDNN convolution", "cuDNN recurrent network"):
        if bounds.get(name, 0) <= 0:
            problems.append(f"the record does not bound {name!r}: {bounds}")
    if bounds.get("cuFFT plan") != 4 * 32 * 32 * 8:  # as much as the complex data
        problems.append(f"the record has another bound of cuFFT's plan: {bounds}")
    problems += taken_workspaces()

    # What estimates take as given of cards that this PyTorch has no kernels for. PTX would be "compute_..." among them.
    version, known = declared()
    if answer["version"] == version and answer["compiled_for"] != known:
        problems.append(f"PyTorch {version} is compiled for {answer['compiled_for']}, estimates say {known}")

    # PyTorch's default for compute capability 9.0, one for each handle; a finished backward keeps its thread's.
    workspaces, _ = run(WORKSPACES)
    if workspaces != [33554432, 33554432] and answer["torch"] < [2, 12]:  # 2.15 no longer allocates them so
        problems.append(f"workspaces of cuBLAS in forward and on autograd's thread: {workspaces}")
    contents, record = run(CONTENTS)
    if contents != [True, 0] or record["uncertain_reads"]["count"] != 1:
        problems.append(f"a product's input and output: {contents}, {record['uncertain_reads']}")
    print(f"{len(CALLS)} calls, {len(problems)} problems", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
