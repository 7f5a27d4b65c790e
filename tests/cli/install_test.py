"""What `cmake --install` copies works from there: the program finds its stand-ins through the link in bin.

Usage: install_test.py BUILD_DIRECTORY
"""
import json
import os
import subprocess
import sys
import tempfile

ALLOCATE = "import ctypes; ctypes.CDLL('libcudart.so.13').cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 30))"


def main():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VRAMFIT_")}
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", sys.argv[1], "--prefix", prefix, "--component", "program"], check=True,
                       stdout=subprocess.DEVNULL)
        command = [os.path.join(prefix, "bin", "vramfit"), "rehearse", "--gpus", "1xH100-80GB", "--json", "--", sys.executable, "-c", ALLOCATE]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
        assert found["ranks"][0]["peak_allocated_bytes"] == 1 << 30, found


if __name__ == "__main__":
    main()
