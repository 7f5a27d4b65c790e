"""rehearse --search --warm with PyTorch: tables equal to the byte to those of processes of their own."""
import json
import os
import re
import subprocess
import sys

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts", "small_step.py")


def search(warm, jobs):
    command = [VRAMFIT, "rehearse", "--gpus", "4xH100-80GB", "--ranks", "2", "--search", "bs=64,65536,4194304", "--warm", warm, "--jobs", jobs, "--json", "--",
               sys.executable, SCRIPT, "--bs", "{bs}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(re.sub(r"process \d+", "process", done.stdout)), done.stderr


def main():
    cold, _ = search("off", "1")
    assert [row["trials"][0]["verdict"] for row in cold["rows"]] == ["fits", "fits", "does_not_fit"], cold
    for warm, jobs, imported in (("auto", "1", "import argparse; import torch; from torch import nn"), ("torch,torch._dynamo", "2", "import torch; import torch._dynamo")):
        found, said = search(warm, jobs)
        assert found == cold, (found, cold)
        assert f"s: {imported}\n" in said, said


if __name__ == "__main__":
    main()
