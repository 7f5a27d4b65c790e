"""A Python that has libraries only in name, and a torch that takes a GiB for each sequence of a recipe's micro-batch and shows the script."""
import os
import sys
import tempfile

LIBRARIES = {"torch": "2.11.0+cu130", "transformers": "5.23.0", "accelerate": "1.15.0"}
TORCH = """import ctypes, os, sys
script = open(sys.argv[0]).read()
print(script, os.environ["HF_HUB_OFFLINE"])
values = dict(line.split("  # ")[0].split(" = ") for line in script.splitlines() if "  # --" in line)
sys.exit(ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(values["MICRO_BATCH"]) << 30)))
"""


def make(folder, libraries=None):
    """The path of an interpreter with nothing but the metadata of these, by default LIBRARIES."""
    site = tempfile.mkdtemp(dir=folder)
    for name, version in (libraries or LIBRARIES).items():
        info = os.path.join(site, f"{name}-{version}.dist-info")
        os.mkdir(info)
        with open(os.path.join(info, "METADATA"), "w", encoding="utf-8") as out:
            out.write(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    with open(os.path.join(site, "torch.py"), "w", encoding="utf-8") as out:
        out.write(TORCH)
    with open(os.path.join(site, "python"), "w", encoding="utf-8") as out:
        out.write(f"#!/bin/sh\nPYTHONPATH={site}${{PYTHONPATH:+:$PYTHONPATH}} exec {sys.executable} -s \"$@\"\n")
    os.chmod(out.name, 0o755)
    return out.name
