"""Releases of PyTorch other than the pinned one, which scripts/torch-versions downloads: an FSDP2 script as rank 0 of four needs what docs/versions.md
says, with values computed, and without a call of a function that the stand-ins lack."""
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile

SOURCE = os.environ["VRAMFIT_SOURCE_DIR"]
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
SCRIPT = os.path.join(SOURCE, "tests", "rehearse", "scripts", "fully_shard.py")
CUDA_LIBRARIES = os.path.join(sysconfig.get_path("purelib"), "nvidia", "cu13", "lib")
NEWER = "(newer than this vramfit)"
ROW = re.compile(r"^\| (\d+\.\d+\.\d+)\+cu13\d \| [\d.]+ \| [\d.]+ \| fits, ([\d.]+) MiB \|", re.M)


def documented():
    """{version: MiB of the FSDP2 script}; the last row of a version counts."""
    with open(os.path.join(SOURCE, "docs", "versions.md"), encoding="utf-8") as file:
        return dict(ROW.findall(file.read()))


def downloaded():
    done = subprocess.run([os.path.join(SOURCE, "scripts", "torch-versions"), "--list"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def rehearse(folder):
    """(what was printed, the report)"""
    environment = {**os.environ, "PYTHONPATH": folder, "LD_LIBRARY_PATH": CUDA_LIBRARIES}
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "report.json")
        done = subprocess.run([VRAMFIT, "rehearse", "--gpus", "4xH100-80GB", "--ranks", "0", "-o", path, "--", sys.executable, SCRIPT],
                              capture_output=True, text=True, timeout=500, env=environment, check=False)
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def main():
    expected, versions = documented(), downloaded()
    assert len(versions) >= 2, versions
    for version, folder in versions.items():
        report = rehearse(folder)
        peak = report["ranks"][0]["peak_allocated_bytes"]
        assert report["verdict"] == "fits" and report["ranks"][0]["source"] == "torch", report
        assert f"{peak / 2**20:.1f}" == expected[version], (version, peak / 2**20, expected[version])
        assert not any("values are not computed" in note for note in report["notes"]), report["notes"]
        filled = [entry for process in report["processes"] for entry in process["unsupported"] if NEWER in entry["function"]]
        assert not filled, filled
        used = [process["torch"].partition("+")[0] for process in report["processes"] if process["torch"]]
        assert used == [version], (used, version)
        print(f"torch {version}: {peak / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
