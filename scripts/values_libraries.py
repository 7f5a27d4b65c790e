#!/usr/bin/env python3
"""Compiles the library that computes values (docs/values.md) for each PyTorch of torch-headers.txt, so that who installs a wheel needs no
compiler. Headers of PyTorch are those of its wheels for aarch64, the smallest: what is compiled from them is the same on all machines.
Usage: scripts/values_libraries.py ZIG TARGET OUT PLACE     (TARGET: x86_64-linux-gnu.2.28; OUT has libvramfit-phantom.so, and gets the rest; PLACE
is a folder for what is made on the way)
Environment: VRAMFIT_CACHE (the headers lie there, 0.7 GB), VRAMFIT_JOBS; pip's own settings apply"""

import concurrent.futures
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts" / "torch-headers.txt"
SOURCES = [ROOT / "phantom" / "values" / name for name in ("install.cpp", "older_libstdcxx.cpp")]
NEEDED = ("torch_cpu", "c10")  # the program's own; here, an empty library of that name is enough
EXPORTS = "{ global: vramfit_values_install; local: *; };\n"
# libstdc++ asks glibc 2.32 and newer whether there is one thread. To say no is always right.
SINGLE_THREADED = "#pragma once\nstatic constexpr bool __libc_single_threaded = false;\n"
FLAGS = ["-std=c++20", "-O2", "-g0", "-w", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fstack-protector-strong",
         "-fno-sanitize=undefined", "-nostdinc++"]
LINK = ["-shared", "-s", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-Wl,-z,undefs", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-rpath,$ORIGIN"]


def releases():
    lines = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [(version, abis.split(","), platform, digest) for version, abis, platform, digest in lines]


def headers(version, platform, digest):
    """The folder of that release's headers, which is made once."""
    folder = pathlib.Path(os.environ["VRAMFIT_CACHE"], "wheel", "torch-headers", f"{version}-{digest[:16]}")
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            wanted = pathlib.Path(place, "wanted.txt")
            wanted.write_text(f"torch=={version} --hash=sha256:{digest}\n")
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-input", "--no-cache-dir", "--no-deps", "--only-binary=:all:",
                            "--require-hashes", "--platform", platform, "--python-version", "3.11", "-d", place, "-r", wanted], check=True)
            wheel, = pathlib.Path(place).glob("*.whl")
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(place, [name for name in packed.namelist() if name.startswith("torch/include/")])
            os.replace(pathlib.Path(place, "torch", "include"), folder)
    return folder


def name_of(version, abi):
    return f"libvramfit-values-{'.'.join(version.split('.')[:2])}{'' if abi == '1' else '-abi' + abi}.so"


def standard_headers():
    """Those of g++: PyTorch's packages are made with libstdc++, which zig doesn't have. Before zig's own, as they continue with the C library's."""
    release, machine = (subprocess.run(["g++", flag], capture_output=True, text=True, check=True).stdout.strip()
                        for flag in ("-dumpversion", "-dumpmachine"))
    return [f"/usr/include/c++/{release}", f"/usr/include/{machine}/c++/{release}"]


def runtime(name):
    return subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


class Compiler:
    def __init__(self, zig, target, out, place):
        self.command, self.out, self.place = [zig, "cc", "-target", target], pathlib.Path(out), pathlib.Path(place)
        (self.place / "sys").mkdir()
        (self.place / "sys" / "single_threaded.h").write_text(SINGLE_THREADED)
        (self.place / "exports.map").write_text(EXPORTS)
        (self.place / "empty.c").write_text("")
        for name in NEEDED:
            self.run("-shared", "-nostdlib", self.place / "empty.c", f"-Wl,-soname,lib{name}.so", "-o", self.place / f"lib{name}.so")
        self.includes = [word for folder in [self.place, *standard_headers(), ROOT] for word in ("-I", folder)]

    def run(self, *words):
        subprocess.run([*self.command, *words], check=True)

    def make(self, version, abi, torch):
        """One library; `torch` is the folder of its headers."""
        name = name_of(version, abi)
        objects = [self.place / f"{name}.{source.stem}.o" for source in SOURCES]
        for source, made in zip(SOURCES, objects):
            self.run("-x", "c++", *FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *self.includes, "-isystem", torch, "-c", source, "-o", made)
        self.run(*LINK, f"-Wl,--version-script={self.place / 'exports.map'}", *objects, "-L", self.place, *[f"-l{lib}" for lib in NEEDED],
                 "-L", self.out, "-lvramfit-phantom", runtime("libstdc++.so.6"), runtime("libgcc_s.so.1"), "-o", self.place / name)
        os.replace(self.place / name, self.out / name)
        return name


def fingerprint(zig, target):
    """Of all that the libraries are made from."""
    release = subprocess.run([zig, "version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(f"{release} {target}".encode())
    for path in [pathlib.Path(__file__), LIST, *sorted((ROOT / "phantom" / "values").iterdir())]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    zig, target, out, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    made, key = pathlib.Path(folder, "made"), fingerprint(zig, target)
    done = set(made.read_text().splitlines()) if made.exists() else set()  # of this and earlier fingerprints
    wanted = [(version, abi, platform, digest) for version, abis, platform, digest in releases() for abi in abis
              if f"{key} {name_of(version, abi)}" not in done]
    found = [(version, abi, headers(version, platform, digest)) for version, abi, platform, digest in wanted]
    with tempfile.TemporaryDirectory(dir=folder) as place:
        compiler = Compiler(zig, target, out, place)
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("VRAMFIT_JOBS") or os.cpu_count())) as pool:
            for name in pool.map(lambda job: compiler.make(*job), found):
                print(f"  {name}", file=sys.stderr)
                with made.open("a") as file:
                    file.write(f"{key} {name}\n")


if __name__ == "__main__":
    main()
