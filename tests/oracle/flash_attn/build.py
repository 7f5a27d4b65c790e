"""Installs flash-attn without its kernels into the environment of the Python that runs this, for rehearsals, where kernels are only launched.

The package has no wheel for the tests' PyTorch, and its kernels take hours to compile. What allocates is one file of its source archive, flash_api.cpp, which is compiled here (a minute) with
launchers that do nothing. Needs a C++ compiler, and PyTorch with CUDA's headers beside it. `oracle/flash_attn/live` is skipped without it.
"""

import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile

import torch

VERSION = "2.8.3"
HERE = pathlib.Path(__file__).resolve().parent


def unpacked(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", f"flash-attn=={VERSION}", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", folder], check=True)
    with tarfile.open(next(folder.glob("flash_attn-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"flash_attn-{VERSION}"


def compile_host(source, output):
    library = pathlib.Path(torch.__file__).parent
    cuda = library.parent / "nvidia" / f"cu{torch.version.cuda.split('.')[0]}" / "include"
    folders = [library / "include", library / "include/torch/csrc/api/include", cuda, sysconfig.get_path("include"), source / "csrc/flash_attn", source / "csrc/flash_attn/src", source / "csrc/cutlass/include"]
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-DTORCH_EXTENSION_NAME=flash_attn_2_cuda", *(word for folder in folders for word in ("-isystem", folder)), HERE / "host.cpp", "-o", output,
         "-L", library / "lib", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ltorch_python", "-ltorch"], check=True)


def main():
    site = pathlib.Path(sysconfig.get_path("purelib"))
    with tempfile.TemporaryDirectory() as folder:
        source = unpacked(pathlib.Path(folder))
        compile_host(source, site / f"flash_attn_2_cuda{sysconfig.get_config_var('EXT_SUFFIX')}")
        shutil.copytree(source / "flash_attn", site / "flash_attn", dirs_exist_ok=True)
        record = site / f"flash_attn-{VERSION}.dist-info"  # by which transformers finds the package
        record.mkdir(exist_ok=True)
        shutil.copy(source / "PKG-INFO", record / "METADATA")
        (record / "top_level.txt").write_text("flash_attn\nflash_attn_2_cuda\n", encoding="utf-8")
        (record / "RECORD").write_text("", encoding="utf-8")


if __name__ == "__main__":
    main()
