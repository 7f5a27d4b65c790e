"""What a program's libraries need of GPU libraries and the stand-ins lack: the program starts, and each call is counted by name.

Usage: missing_test.py PROGRAM_LIBRARY
"""
import json
import os
import subprocess
import sys

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
# The runtime first, as programs of CUDA have it, so that there is a record to count in.
SCRIPT = """import ctypes, sys
ctypes.CDLL("libcudart.so.13").cudaFree(None)
program = ctypes.CDLL(sys.argv[1])
print([program.call_nvshmem(), program.call_nccl(), program.call_nccl(), program.has_optional(), program.call_own()], file=sys.stderr)
"""
NOT_SUPPORTED = {"nvshmem": 1, "nccl": 5}


def main():
    done = subprocess.run([VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--json", "--", sys.executable, "-c", SCRIPT, sys.argv[1]],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    answers = [NOT_SUPPORTED["nvshmem"], NOT_SUPPORTED["nccl"], NOT_SUPPORTED["nccl"], 0, 42]
    assert done.stderr.splitlines()[-1] == str(answers), done.stderr
    process, = json.loads(done.stdout)["processes"]
    counted = {entry["function"]: entry["calls"] for entry in process["unsupported"]}
    assert counted == {"nvshmem_newer_than_the_stand_in (newer than this vramfit)": 1, "ncclNewerThanTheStandIn (newer than this vramfit)": 2}, counted


if __name__ == "__main__":
    main()
