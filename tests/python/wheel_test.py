"""The wheel is what its name says and installs into an empty environment, from where it works: the program, the package, a rehearsal
under torchrun, libraries of both majors of CUDA, values without a compiler, and, with the second wheel, the engine.

Usage: wheel_test.py [WHEEL [PYTHON]]      (without a wheel, scripts/wheel builds it; PYTHON: of an environment with torch for CUDA 12)
"""
import glob
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

SOURCE = os.environ["VRAMFIT_SOURCE_DIR"]
SCRIPT = os.path.join(SOURCE, "tests", "rehearse", "scripts", "fully_shard.py")
MOST_BYTES = 20 << 20
NEWEST_GLIBC = (2, 28)
LICENSES = {"vramfit", "zig", "libcxx", "libcxxabi", "libunwind", "libfmt-dev", "libcli11-dev", "nlohmann-json3-dev", "libzstd-dev", "libyaml-dev",
            "libtomlplusplus-dev"}
BROUGHT_ALONG = re.compile(r"lib(stdc\+\+|gcc_s|fmt|yaml|zstd|curl|c\+\+)")
USE = """import vramfit
found = vramfit.estimate("gpt2", gpus="1xH100-80GB")
assert found.fits and vramfit.__version__ != "0" and "site-packages" in vramfit.__file__
"""
NEWEST_GLIBCXX = (3, 4, 25)  # of g++ 8, which goes with glibc 2.28
VALUES = "libvramfit-values-"
COMPUTE = "import torch; assert (torch.arange(10, device='cuda') * 2).sum().item() == 90; print(torch.__version__)"
ALLOCATE = "import ctypes; assert ctypes.CDLL('{}').cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 30)) == 0"


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout


def wheel():
    if len(sys.argv) > 1:
        return sys.argv[1]
    subprocess.run([os.path.join(SOURCE, "scripts", "wheel")], check=True)
    found, = glob.glob(os.path.join(SOURCE, "dist", "*.whl"))
    return found


def newest(text, library):
    """Of the versions of a library that symbols ask for."""
    return max((tuple(map(int, version.split("."))) for version in re.findall(rf"@{library}_([0-9.]+)", text)), default=(0,))


def values_names():
    """As scripts/torch-headers.txt asks for them."""
    with open(os.path.join(SOURCE, "scripts", "torch-headers.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if not line.startswith("#")]
    return {f"{VALUES}{row[0].rpartition('.')[0]}{'' if abi == '1' else '-abi0'}.so" for row in rows for abi in row[1].split(",")}


def check_contents(path):
    """Every program and library needs a C library as old as the name says, and nothing else of the system."""
    assert path.endswith("-manylinux_2_28_x86_64.whl") and os.path.getsize(path) < MOST_BYTES, (path, os.path.getsize(path))
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
        package = os.path.join(folder, "vramfit")
        assert set(os.listdir(os.path.join(package, "licenses"))) == LICENSES
        paths = [os.path.join(package, "bin", "vramfit"), *glob.glob(os.path.join(package, "lib", "phantom", "**", "lib*.so*"), recursive=True)]
        values = {path for path in paths if VALUES in path}
        assert {os.path.basename(path) for path in values} == values_names() and len(paths) - len(values) > 20, paths
        for name in paths:
            text = run("readelf", "--wide", "--dynamic", "--dyn-syms", name)
            assert newest(text, "GLIBC") <= NEWEST_GLIBC, (name, newest(text, "GLIBC"))
            if name in values:  # comes into processes of PyTorch's, where its C++ library is
                assert (0,) < newest(text, "GLIBCXX") <= NEWEST_GLIBCXX, (name, newest(text, "GLIBCXX"))
                continue
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
        no_compiler = {**settings, "env": {**environment, "CXX": "/bin/false", "XDG_CACHE_HOME": folder}}
        for each in [sys.executable, *sys.argv[2:]]:
            assert rehearse(vramfit, [each, "-c", COMPUTE], ["--gpus", "1xH100-80GB"], **no_compiler)["values"]["certain"]
        for other in sys.argv[2:]:
            rehearse(vramfit, [other, SCRIPT], ["--gpus", "4xH100-80GB", "--ranks", "0"], **settings)
        check_engine(folder, vramfit, settings)


def check_engine(folder, vramfit, settings):
    """vramfit[train] asks for a wheel of the same version, which finds PyTorch beside it and trains."""
    subprocess.run([os.path.join(SOURCE, "scripts", "wheel"), "--train"], check=True)
    path, = glob.glob(os.path.join(SOURCE, "dist", "vramfit_train-*.whl"))
    python = os.path.join(folder, "bin", "python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", path)
    wanted = run(python, "-c", "import importlib.metadata as m; print(*m.requires('vramfit'), *m.requires('vramfit-train'), sep='\\n')").splitlines()
    version = run(python, "-c", "import vramfit; print(vramfit.__version__)").strip()
    assert wanted[0] == f"vramfit-train=={version}; extra == 'train'" and sorted(wanted[1:]) == ["torch==2.11.0", f"vramfit=={version}"], wanted
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    for name in ("torch", "nvidia"):  # 4 GB, which pip would bring
        os.symlink(os.path.join(sysconfig.get_path("purelib"), name), os.path.join(site, name))
    model = os.path.join(SOURCE, "tests", "models", "llama.json")
    done = run(vramfit, "run", model, "--gpus", "2xcpu-4GiB", "--seq-len", "32", "--steps", "2", "-o", "run.json", **settings)
    with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
        assert len(json.load(file)["ranks"]) == 2, done


def main():
    path = wheel()
    check_contents(path)
    check_installed(path)


if __name__ == "__main__":
    main()
