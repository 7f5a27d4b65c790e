"""Outside executor/ops, executor/data and dumps, one file makes tensors: executor/training/tensor.cpp. So what a rank allocates
is what its program says, and the names of what kernels ask for."""
import re
import sys

from tree import ROOT, report, tracked_files

MAKER = "executor/training/tensor.cpp"
ELSEWHERE = ("executor/ops/", "executor/data/", "executor/observe/dump")
# Functions of ATen that return new memory or wrap foreign memory, then methods of tensors that do.
FUNCTIONS = ("arange", "cat", "clone", "empty", "empty_like", "empty_strided", "eye", "from_blob", "full", "full_like", "linspace", "ones", "ones_like",
             "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "scalar_tensor", "stack", "tensor", "zeros", "zeros_like")
METHODS = ("clone", "contiguous", "cpu", "cuda", "new_empty", "new_full", "new_zeros", "repeat", "to")
MAKES = re.compile(rf"\b(?:at|torch)::(?:{'|'.join(FUNCTIONS)})\s*\(|(?:\.|->)(?:{'|'.join(METHODS)})\s*\(")


def makers_in(text):
    """Lines that make a tensor, comments aside."""
    return [number for number, line in enumerate(text.splitlines(), 1) if MAKES.search(re.sub(r"//.*", "", line))]


def problems():
    for path in tracked_files():
        name = path.as_posix()
        if not name.startswith("executor/") or path.suffix not in (".cpp", ".h") or name == MAKER or name.startswith(ELSEWHERE):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        if "at::" not in text and "torch::" not in text:
            continue  # no LibTorch here: to() and others are another type's
        for number in makers_in(text):
            yield f"{name}:{number}: makes a tensor: give the program a buffer, or ask {MAKER}"


def check_the_check():
    """Each way is found, and its look-alikes are not."""
    found = ["at::empty({2})", "auto t = x.clone();", "x.to(at::kFloat)", "at::from_blob(p, {1})", "torch::zeros({1})", "p->contiguous()"]
    passed = ["at::empty_out(t)", "at::arange_out(t, 1)", "x.total()", "at::Tensor t;", "// at::empty(", "operands.copy_to(x)"]
    for line in found:
        assert makers_in(line) == [1], line
    for line in passed:
        assert makers_in(line) == [], line


if __name__ == "__main__":
    check_the_check()
    sys.exit(report(list(problems()), "tensor makers"))
