"""Includes point one way: cli -> planner -> estimator -> program -> job -> model_specs -> base, executor -> program,
phantom -> base; LibTorch stays in executor/."""
import re
import sys

from tree import ROOT, report, tracked_files

# Each folder of the way down may include those below it; executor/ reads programs, phantom/ knows only what all share.
WAY_DOWN = ["cli", "planner", "estimator", "program", "job", "model_specs", "base"]
MAY_INCLUDE = {folder: set(WAY_DOWN[at:]) for at, folder in enumerate(WAY_DOWN)}
MAY_INCLUDE["executor"] = {"executor"} | MAY_INCLUDE["program"]
MAY_INCLUDE["phantom"] = {"phantom", "base"}
MAY_INCLUDE["tests"] = {"tests", "executor", "phantom"} | set(WAY_DOWN)
LIBTORCH = re.compile(r"^(torch|ATen|c10|caffe2|gloo|cuda|cublas|nccl|nv\w*)(/|\.h|_|$)")
CUDA = re.compile(r"^(cuda|cublas|cudnn|nccl|cu[a-z]+|nv\w*)(/|\.h|_|$)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CPP = {".cpp", ".h", ".cu", ".cuh"}


def libtorch_allowed(path, target):
    """Only sources, and headers named *_torch.h that several sources share. Phantom cards: the stand-ins are libraries of
    CUDA's own interfaces, so their headers include CUDA's; the core that they share knows neither CUDA nor LibTorch."""
    if path.parts[:2] == ("tests", "phantom") and CUDA.match(target):
        return True
    if path.parts[:2] == ("phantom", "values"):  # compiled for the torch of the program that is rehearsed
        return path.suffix == ".cpp" or path.name.endswith("_torch.h")
    if path.parts[0] == "phantom":
        return path.parts[1] != "core" and bool(CUDA.match(target))
    inside = path.parts[0] == "executor" or path.parts[:2] == ("tests", "executor")
    return inside and (path.suffix != ".h" or path.name.endswith("_torch.h"))


def problems_in(path, text):
    folder = path.parts[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        where = f"{path}:{number}: includes {target}"
        if LIBTORCH.match(target) and not libtorch_allowed(path, target):
            yield f"{where}: LibTorch, CUDA, NCCL and Gloo are for the sources (and *_torch.h) of executor/"
        if target.startswith("nlohmann/") and path.suffix == ".h" and not target.endswith("json_fwd.hpp"):
            yield f"{where}: the JSON library is for sources only"
        if target.startswith("CLI/") and "cli" not in path.parts[:2]:
            yield f"{where}: CLI11 is for cli/"
        generated = target.endswith(".inc") and "/" not in target   # a table that the build makes
        if quote == '"' and not generated and target.split("/")[0] not in MAY_INCLUDE.get(folder, set()):
            yield f"{where}: {folder}/ may include {', '.join(sorted(MAY_INCLUDE.get(folder, set())))}"


def self_test():
    """A check that finds nothing proves nothing unless it finds what is planted."""
    from pathlib import PurePath
    planted = [("estimator/a.cpp", '#include "planner/plan.h"'), ("cli/a.cpp", "#include <ATen/ATen.h>"),
               ("executor/a.h", "#include <torch/torch.h>"), ("model_specs/a.h", "#include <nlohmann/json.hpp>"),
               ("planner/a.cpp", "#include <cuda_runtime_api.h>"), ("estimator/a.cpp", "#include <CLI/CLI.hpp>"),
               ("cli/a.cpp", '#include "executor/meter/meter.h"'),
               ("executor/a.cpp", '#include "estimator/estimate.h"'), ("program/a.cpp", '#include "estimator/estimate.h"'),
               ("job/a.cpp", '#include "program/ops/rule.h"'), ("phantom/core/a.cpp", '#include "job/job.h"'),
               ("phantom/core/a.cpp", "#include <cuda_runtime_api.h>"),
               ("phantom/nccl/a.cpp", "#include <ATen/ATen.h>")]
    for name, text in planted:
        assert list(problems_in(PurePath(name), text)), f"not found: {name}: {text}"
    assert not list(problems_in(PurePath("executor/a.cpp"), "#include <ATen/ATen.h>"))
    assert not list(problems_in(PurePath("phantom/nccl/a.h"), "#include <nccl.h>"))


def main():
    self_test()
    problems = []
    for path in tracked_files():
        if path.suffix in CPP and path.parts[0] in MAY_INCLUDE:
            problems += problems_in(path, (ROOT / path).read_text(encoding="utf-8"))
    return report(problems, "include direction")


if __name__ == "__main__":
    sys.exit(main())
