"""Each stand-in defines every public function: all that the real library exports, under its version, and all that headers declare."""
import ctypes
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

LIBRARIES = pathlib.Path(os.environ["VRAMFIT_BIN_DIR"]).parent / "lib" / "phantom"
NVIDIA = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
OWN = {"libvramfit-phantom.so", "libvramfit-phantom-audit.so"}
OWN_NAMES = re.compile(r"vramfit_|phantom|_ZNK?7vramfit|_ZT.N7vramfit")
VALUES = "libvramfit-values-"  # computes values inside PyTorch, which it needs; stands in for nothing

# Headers that declare a library's functions, and the least number they are known to declare, in CUDA 12.8 as in 13.0.
HEADERS = {
    "libcuda.so": (["cuda.h"], 440),
    "libcudart.so": (["cuda_runtime_api.h"], 290),
    "libcublas.so": (["cublas_api.h", "cublasXt.h"], 500),
    "libcublasLt.so": (["cublasLt.h"], 43),
    "libcudnn.so": ([f"cudnn_{part}_v9.h" for part in ("graph", "ops", "cnn", "adv")], 210),
    "libcusolver.so": (["cusolverDn.h"], 370),
    "libcusparse.so": (["cusparse.h"], 400),
    "libcufft.so": (["cufft.h", "cufftXt.h"], 50),
    "libcurand.so": (["curand.h"], 27),
    "libcusparseLt.so": (["cusparseLt.h"], 30),
    "libnccl.so": (["nccl.h"], 40),
}
# A function's name after what each library puts before it: a macro for the calling convention, or the status type.
DECLARED = re.compile(
    r"^(?!\s*(?:#|//|\*|typedef|static|return|.*=)).*?"
    r"(?:WINAPI|CUDARTAPI|CUSOLVERAPI|CUSPARSEAPI|CURANDAPI|CUFFTAPI|CUDAAPI|ncclResult_t|CUSPARSELT_API)\s+(\w+)\s*\(", re.M)


def exported(library):
    """name -> version node ("" without) of a library's functions in C, and variables."""
    text = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        *_, kind, symbol = line.split()
        name, _, node = symbol.partition("@@")
        if kind in "TWiBDR" and not name.startswith("_Z") and not name.startswith(("_init", "_fini", "__bss", "_e")):
            found[name.partition("@")[0]] = node
    return found


def problems_of(path):
    ctypes.CDLL(str(path))  # all it needs is there
    here = exported(path)
    real = next(iter(NVIDIA.glob(f"*/lib/{path.name}")), None)
    if real is not None:
        for name, node in exported(real).items():
            if here.get(name) != node:
                yield f"{path.name}: {name}@{node} of the real library is {here.get(name, 'missing')!r}"
    elif path.parent != LIBRARIES:
        return  # of the other major
    headers, least = HEADERS.get(path.name.rpartition(".")[0], ([], 0))
    declared = set()
    for header in headers:
        for file in NVIDIA.glob(f"*/include/{header}"):
            declared |= set(DECLARED.findall(file.read_text(encoding="utf-8")))
    if len(declared) < least:
        yield f"{path.name}: {len(declared)} declarations read, at least {least} are known: this test no longer sees them"
    for name in sorted(declared - set(here)):
        yield f"{path.name}: {name} is declared by {headers}, and missing"


def foreign_names(path):
    """What a library of ours shows of the libraries that it is made with, which programs have too, in other versions."""
    text = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in text.splitlines()]
    if len(names) < 50:
        yield f"{path.name}: {len(names)} names: stand-ins need more"
    yield from (f"{path.name} shows {name}" for name in names if not OWN_NAMES.match(name))


def main():
    libraries = [path for path in LIBRARIES.rglob("lib*.so*") if path.name not in OWN and not path.name.startswith(VALUES)]
    built = {path.name.rpartition(".")[0] for path in libraries}
    problems = list(foreign_names(LIBRARIES / "libvramfit-phantom.so"))
    problems += [f"{name} is not built" for name in HEADERS if name not in built]
    ctypes.CDLL(str(LIBRARIES / "libvramfit-phantom.so"), mode=ctypes.RTLD_GLOBAL)
    count = 0
    for path in sorted(libraries):
        problems += problems_of(path)
        count += len(exported(path))
    if "noSuchFunction" in exported(LIBRARIES / "cuda13" / "libcublas.so.13"):
        problems.append("noSuchFunction is exported: this test cannot fail")
    print(f"{count} functions of {len(libraries)} libraries, {len(problems)} problems", *problems[:40], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
