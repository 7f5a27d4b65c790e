"""The configurations that torchtune and TRL install are imported, and none of their keys is unknown.

The environments are those of $VRAMFIT_TORCHTUNE_PYTHON and $VRAMFIT_RECIPES_PYTHON (tests/rehearse/requirements-*.txt).
"""

import json
import os
import pathlib
import subprocess
import unittest

PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")


def site_packages(variable):
    """Where that Python's packages are; skips the test without one."""
    python = os.environ.get(variable)
    if not python:
        raise unittest.SkipTest(f"{variable} names no Python")
    done = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


class Shipped(unittest.TestCase):
    def import_all(self, files, least):
        files = sorted(files)
        self.assertGreaterEqual(len(files), least)
        for file in files:
            with self.subTest(str(file)):
                done = subprocess.run([PROGRAM, "import", "--json", file], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                unknown = [finding["key"] for finding in json.loads(done.stdout)["ignored"] if "knows of no such key" in finding["says"]]
                self.assertEqual(unknown, [])

    def test_recipes_of_torchtune(self):
        self.import_all((site_packages("VRAMFIT_TORCHTUNE_PYTHON") / "recipes" / "configs").rglob("*.yaml"), 100)

    def test_launcher_configurations_of_trl(self):
        self.import_all((site_packages("VRAMFIT_RECIPES_PYTHON") / "trl" / "accelerate_configs").glob("*.yaml"), 5)


if __name__ == "__main__":
    unittest.main()
