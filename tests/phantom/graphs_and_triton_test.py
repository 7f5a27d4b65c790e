"""CUDA graphs and Triton kernels of the real PyTorch on phantom cards. (torch.compile: rehearse/compiled-step.)"""
import os
import tempfile

from phantom_session import LIBRARIES, run

GRAPH = """
import json, torch
source = torch.zeros(8, device="cuda")
result = torch.zeros(8, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    result.copy_(source)
torch.cuda.current_stream().wait_stream(side)
before = torch.cuda.memory_allocated()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result.copy_(source)
    activations = torch.empty(1 << 20, device="cuda")
    activations.mul_(2)
held = torch.cuda.memory_allocated() - before
seen = []
for value in (3.0, 4.0):
    source.copy_(torch.full((8,), value))
    graph.replay()
    seen.append(result.cpu().tolist())
spoiled = torch.cuda.CUDAGraph()
message = ""
try:
    with torch.cuda.graph(spoiled):
        source.sum().item()
except RuntimeError as error:
    message = str(error)
torch.cuda.synchronize()
print(json.dumps({"seen": seen, "held": held, "message": message}))
"""

TRITON = """
import importlib.util, json, torch
spec = importlib.util.spec_from_file_location("kernel", KERNEL)
module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module)
x, y = torch.ones(1000, device="cuda"), torch.ones(1000, device="cuda")
known = torch.tensor([5, 6, 7], device="cuda")
out = torch.empty_like(x)
compiled = module.add[(4,)](x, y, out, 1000, BLOCK=256)
print(json.dumps({"registers": compiled.n_regs, "spills": compiled.n_spills, "known": known.cpu().tolist(),
                  "shape": list(out.shape)}))
"""

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    tl.store(out + index, tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside), mask=inside)
"""

OTHER_CARDS = """
import json, torch
try:
    print(json.dumps(torch.nonzero(torch.tensor([0, 1, 1], device="cuda")).shape[1:]))
except RuntimeError as error:
    print(json.dumps(str(error)))
"""


def main():
    # CUB chooses by what its code was compiled for, which is 8.6 on a card of 8.9; for 7.0 this PyTorch has no code.
    assert run(OTHER_CARDS, {"compute_capability": "8.9"})[0] == [1]
    assert "no kernel image is available" in run(OTHER_CARDS, {"compute_capability": "7.0"})[0]

    result, record = run(GRAPH)
    # A copy between tensors is a node that is done again; what a kernel would compute is not known.
    assert result["seen"] == [[3.0] * 8, [4.0] * 8], result
    assert result["held"] >= 4 << 20, result
    assert "captur" in result["message"], result
    assert record["unsupported"] == {}, record["unsupported"]

    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TRITON_CACHE_DIR=folder, TRITON_LIBCUDA_PATH=str(LIBRARIES))
        path = os.path.join(folder, "kernel.py")
        with open(path, "w", encoding="utf-8") as out:
            out.write(KERNEL)
        result, record = run(f"KERNEL = {path!r}\n" + TRITON)
        assert result["registers"] > 0 and result["spills"] == 0, result
        # The kernel's pointers are known from its cubin, so a tensor that it was not given stays certain.
        assert result["known"] == [5, 6, 7], result
        assert record["unsupported"] == {} and record["escapes"] == [], record


if __name__ == "__main__":
    main()
