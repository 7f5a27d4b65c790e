"""The configurations that other tools ship are imported, and none of their keys is unknown but those that are misspelt.

torchtune and TRL install theirs: the environments are those of $VRAMFIT_TORCHTUNE_PYTHON and $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-*.txt). Those of axolotl and DeepSpeed are in their source archives, which scripts/example-configs
downloads ("scripts/setup --full" does).
"""

import json
import os
import pathlib
import subprocess
import unittest

SOURCES = pathlib.Path(os.environ.get("VRAMFIT_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")


def site_packages(variable):
    """Where that Python's packages are; skips the test without one."""
    python = os.environ.get(variable)
    if not python:
        raise unittest.SkipTest(f"{variable} names no Python")
    done = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True)
    return pathlib.Path(done.stdout.strip())


def example_configs():
    """The folder of scripts/example-configs; skips the test where nothing was downloaded."""
    done = subprocess.run([SOURCES / "scripts" / "example-configs", "--list"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise unittest.SkipTest(done.stderr.strip())
    return pathlib.Path(done.stdout.strip())


# Of axolotl 0.19: keys that its own schema doesn't have, by the files that have them.
MISSPELT = {"context_parapllel_size": "examples/falcon-h1/", "test_value": "examples/llama-3/lora-1b-sample-packing-sequentially.yml"}

# Its configurations that are no training: of cloud providers.
NO_TRAINING = {"examples/cloud/baseten.yaml", "examples/cloud/modal.yaml"}


class Shipped(unittest.TestCase):
    def imported(self, file):
        done = subprocess.run([PROGRAM, "import", "--json", file], capture_output=True, text=True, timeout=60, check=False)
        self.assertIn(done.returncode, (0, 2), done.stderr)
        return (json.loads(done.stdout) if done.returncode == 0 else None), done.stderr

    def unknown_keys(self, job):
        return [finding["key"] for finding in job["ignored"] if "knows of no such key" in finding["says"]]

    def import_all(self, files, least):
        files = sorted(files)
        self.assertGreaterEqual(len(files), least)
        for file in files:
            with self.subTest(str(file)):
                job, message = self.imported(file)
                self.assertIsNotNone(job, message)
                self.assertEqual(self.unknown_keys(job), [])

    def test_recipes_of_torchtune(self):
        self.import_all((site_packages("VRAMFIT_TORCHTUNE_PYTHON") / "recipes" / "configs").rglob("*.yaml"), 100)

    def test_launcher_configurations_of_trl(self):
        self.import_all((site_packages("VRAMFIT_RECIPES_PYTHON") / "trl" / "accelerate_configs").glob("*.yaml"), 5)

    def test_examples_of_axolotl(self):
        place = example_configs() / "axolotl-0.19.0"
        files = sorted(file for folder in ("examples", "src/axolotl/integrations") for file in (place / folder).rglob("*.y*ml")
                       if "base_model" in file.read_text() or "examples/" in str(file.relative_to(place)))
        self.assertGreaterEqual(len(files), 250)
        refused = 0
        for file in files:
            name = str(file.relative_to(place))
            with self.subTest(name):
                job, message = self.imported(file)
                if name in NO_TRAINING:
                    self.assertIn("none of the configurations that are read", message)
                elif job is None:  # its own Trainer refuses it
                    self.assertIn("checkpoints activations, and so does", message)
                    refused += 1
                else:
                    self.assertEqual([key for key in self.unknown_keys(job) if not name.startswith(MISSPELT.get(key, "-"))], [])
        self.assertEqual(refused, 4)

    def test_deepspeed_configurations_of_axolotl(self):
        self.import_all((example_configs() / "axolotl-0.19.0" / "deepspeed_configs").glob("*.json"), 8)

    def test_templates_of_deepspeed(self):
        self.import_all((example_configs() / "deepspeed-0.19.8" / "deepspeed" / "autotuning" / "config_templates").glob("*.json"), 4)


if __name__ == "__main__":
    unittest.main()
