"""The library that computes values, for the torch that is installed: the one that came with vramfit, or, for another version, one
that a compiler of this machine makes from the same sources and torch's own headers. It is kept for the next time."""

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile

COMPILERS = ("c++", "g++", "clang++")
LONGEST_SECONDS = 600


def find(torch):
    """(the loaded library, "") or (None, why not)"""
    phantom = os.environ["VRAMFIT_PHANTOM_LIB"]
    brought = os.path.join(phantom, brought_name(torch))
    path = os.path.join(cache_folder(), f"{torch.__version__}-{fingerprint(phantom)}.so")
    for each in (brought, path):
        if os.path.exists(each):
            with contextlib.suppress(OSError):  # made for another build of this version: a symbol is missing
                return ctypes.CDLL(each), ""
    path, why_not = compiled(torch, phantom, path)
    try:
        return path and ctypes.CDLL(path), why_not
    except OSError as error:
        return None, str(error)


def brought_name(torch):
    """As scripts/values_libraries.py names them. What was built between two releases (2.9.0a0+git) resembles neither, so it has none."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+.*)?", torch.__version__)
    return f"libvramfit-values-{release[1] if release else torch.__version__}{'' if cxx11_abi(torch) else '-abi0'}.so"


def cxx11_abi(torch):
    return int(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))


def cache_folder():
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(root, "vramfit", "values")


def fingerprint(phantom):
    """Of the sources, so that another vramfit makes its own."""
    import hashlib
    digest = hashlib.sha256()
    folder = sources(phantom)
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def sources(phantom):
    return os.path.join(phantom, "include", "phantom", "values")


def compiled(torch, phantom, path):
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return None, f"vramfit has no library for torch {torch.__version__}, and there is no C++ compiler to make one"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with lock(path + ".lock"):
            if not os.path.exists(path):
                print(f"vramfit rehearse: compiling the library that computes values for torch {torch.__version__}, once",
                      file=sys.stderr)
                compile_to(torch, phantom, compiler, path)
        return path, ""
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        first = next((line for line in said.splitlines() if "error" in line), said.splitlines()[0] if said else "")
        return None, f"vramfit has no library for torch {torch.__version__}, and {compiler} could not make one: {first[:200]}"


@contextlib.contextmanager
def lock(path):
    """Ranks that start together make it once."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_to(torch, phantom, compiler, path):
    root = os.path.dirname(torch.__file__)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as folder:
        made = os.path.join(folder, "values.so")
        command = [compiler, "-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w",
                   f"-D_GLIBCXX_USE_CXX11_ABI={cxx11_abi(torch)}", "-I", os.path.join(phantom, "include"), "-isystem",
                   os.path.join(root, "include"), os.path.join(sources(phantom), "install.cpp"), "-o", made,
                   "-L", os.path.join(root, "lib"), "-ltorch_cpu", "-lc10", "-L", phantom, "-lvramfit-phantom",
                   "-Wl,-z,now", "-Wl,--unresolved-symbols=ignore-in-shared-libs"]
        # The compiler is no program to rehearse.
        environment = {name: value for name, value in os.environ.items() if name not in ("LD_AUDIT", "VRAMFIT_PHANTOM")}
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_SECONDS, env=environment)
        os.replace(made, path)
