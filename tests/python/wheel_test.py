"""The wheel is what its name says and installs into an empty environment, from where it works: the program, the package, a rehearsal
under torchrun, and libraries of both majors of CUDA.

Usage: wheel_test.py [WHEEL [PYTHON]]      (without a wheel, scripts/wheel builds it; PYTHON: of an environment with torch for CUDA 12)
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.environ["VRAMFIT_SOURCE_DIR"]
SCRIPT = os.path.join(SOURCE, "tests", "rehearse", "scripts", "fully_shard.py")
MOST_BYTES = 20 << 20
NEWEST_GLIBC = (2, 28)
LICENSES = {"vramfit", "zig", "libcxx", "libcxxabi", "libunwind", "libfmt-dev", "libcli11-dev", "nlohmann-json3-dev", "libzstd-dev"}
BROUGHT_ALONG = re.compile(r"lib(stdc\+\+|gcc_s|fmt|zstd|curl|c\+\+)")
USE = """import vramfit
found = vramfit.estimate("gpt2", gpus="1xH100-80GB")
assert found.fits and vramfit.__version__ != "0" and "site-packages" in vramfit.__file__
"""
ALLOCATE = "import ctypes; assert ctypes.CDLL('{}').cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 30)) == 0"


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout


def wheel():
    if len(sys.argv) > 1:
        return sys.argv[1]
    subprocess.run([os.path.join(SOURCE, "scripts", "wheel")], check=True)
    found, = glob.glob(os.path.join(SOURCE, "dist", "*.whl"))
    return found


def check_contents(path):
    """Every program and library needs a C library as old as the name says, and nothing else of the system."""
    assert path.endswith("-manylinux_2_28_x86_64.whl") and os.path.getsize(path) < MOST_BYTES, (path, os.path.getsize(path))
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
        package = os.path.join(folder, "vramfit")
        assert set(os.listdir(os.path.join(package, "licenses"))) == LICENSES
        paths = [os.path.join(package, "bin", "vramfit"), *glob.glob(os.path.join(package, "lib", "phantom", "**", "lib*.so*"), recursive=True)]
        assert len(paths) > 20, paths
        for name in paths:
            text = run("readelf", "--wide", "--dynamic", "--dyn-syms", name)
            newest = max((tuple(map(int, version.split("."))) for version in re.findall(r"@GLIBC_([0-9.]+)", text)), default=(2, 0))
            assert newest <= NEWEST_GLIBC, (name, newest)
            assert not BROUGHT_ALONG.search(" ".join(re.findall(r"\(NEEDED\).*\[(.*)\]", text))), name
            assert not re.search(r" (ZSTD|_ZNSt|_ZdlPv)\w*$", "\n".join(line for line in text.splitlines() if " UND " not in line), re.M), name


def rehearse(vramfit, command, options, **settings):
    found = json.loads(run(vramfit, "rehearse", "--json", *options, "--", *command, **settings))
    assert found["verdict"] == "fits", found
    return found


def check_installed(path):
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python, vramfit = os.path.join(folder, "bin", "python"), os.path.join(folder, "bin", "vramfit")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", path)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("VRAMFIT_", "PYTHON"))}
        settings = {"env": environment, "cwd": folder}
        assert run(vramfit, "estimate", "gpt2", "--gpus", "1xH100-80GB", **settings).startswith("FITS")
        assert run(vramfit, "plan", "gpt2", "--gpus", "2xH100-80GB", **settings).startswith("FITS")
        run(python, "-c", USE, **settings)
        for runtime in ("libcudart.so.12", "libcudart.so.13"):
            found = rehearse(vramfit, [python, "-c", ALLOCATE.format(runtime)], ["--gpus", "1xH100-80GB"], **settings)
            assert found["ranks"][0]["peak_allocated_bytes"] == 1 << 30, found
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
        found = rehearse(vramfit, command, ["--gpus", "2xH100-80GB"], **settings)
        assert (found["ranks"][0]["ranks"], found["ranks"][0]["source"]) == ([0, 1], "torch"), found
        own = rehearse(vramfit, [sys.executable, SCRIPT], ["--gpus", "4xH100-80GB", "--ranks", "0"], **settings)
        built = rehearse(os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit"), [sys.executable, SCRIPT],
                         ["--gpus", "4xH100-80GB", "--ranks", "0"], **settings)
        assert own["ranks"] == built["ranks"], (own, built)
        for other in sys.argv[2:]:
            rehearse(vramfit, [other, SCRIPT], ["--gpus", "4xH100-80GB", "--ranks", "0"], **settings)


def main():
    path = wheel()
    check_contents(path)
    check_installed(path)


if __name__ == "__main__":
    main()
