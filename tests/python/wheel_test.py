"""The wheel installs into an empty environment, and works from there: the program, the package, and a rehearsal under torchrun.

Usage: wheel_test.py [WHEEL]      (without one, scripts/wheel builds it)
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

SOURCE = os.environ["VRAMFIT_SOURCE_DIR"]
SCRIPT = os.path.join(SOURCE, "tests", "rehearse", "scripts", "fully_shard.py")
MOST_BYTES = 20 << 20
USE = """import vramfit
found = vramfit.estimate("gpt2", gpus="1xH100-80GB")
assert found.fits and vramfit.__version__ != "0" and "site-packages" in vramfit.__file__
"""


def run(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=True, **options).stdout


def wheel():
    if len(sys.argv) > 1:
        return sys.argv[1]
    subprocess.run([os.path.join(SOURCE, "scripts", "wheel")], check=True)
    found, = glob.glob(os.path.join(SOURCE, "dist", "*.whl"))
    return found


def main():
    path = wheel()
    assert os.path.getsize(path) < MOST_BYTES, os.path.getsize(path)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python, vramfit = os.path.join(folder, "bin", "python"), os.path.join(folder, "bin", "vramfit")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", path)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("VRAMFIT_", "PYTHON"))}
        assert run(vramfit, "estimate", "gpt2", "--gpus", "1xH100-80GB", env=environment, cwd=folder).startswith("FITS")
        run(python, "-c", USE, env=environment, cwd=folder)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
        found = json.loads(run(vramfit, "rehearse", "--gpus", "2xH100-80GB", "--json", "--", *command, env=environment, cwd=folder))
        assert (found["verdict"], found["ranks"][0]["ranks"], found["ranks"][0]["source"]) == ("fits", [0, 1], "torch"), found


if __name__ == "__main__":
    main()
