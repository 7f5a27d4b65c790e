"""rehearse --recipe: choices, refusals, what is written and kept, and searches, with libraries that are there only in name."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import fake_python

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
MODEL = "HuggingFaceTB/SmolLM2-135M"


class Recipes(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.python = fake_python.make(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def rehearse(self, *words, recipe="trainer", gpus="1xH100-80GB", python=None):
        return subprocess.run([VRAMFIT, "rehearse", "--recipe", recipe, "--gpus", gpus, "--python", python or self.python, *words], text=True,
                              capture_output=True, timeout=100, check=False)

    def refused(self, why, done, code=2):
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), done.stderr)
        self.assertIn(why, done.stderr)

    def test_what_makes_no_sense_is_refused(self):
        self.refused('"trainer"', self.rehearse(MODEL, recipe="trayner"))
        self.refused("MODEL: missing", self.rehearse())
        self.refused("extra: unknown argument", self.rehearse(MODEL, "extra"))
        self.refused("CMD: --recipe writes and starts its own script", self.rehearse(MODEL, "--", "python"))
        self.refused("--lora-rank: recipe trainer has no such choice; it has --seq-len, ", self.rehearse(MODEL, "--lora-rank", "8"))
        self.refused("--precision fp8: unknown value", self.rehearse(MODEL, "--precision", "fp8"))
        self.refused("--micro-batch 0: ", self.rehearse(MODEL, "--micro-batch", "0"))
        self.refused("--gpus 8xH100-80GB: recipe trl-grpo is for one GPU", self.rehearse(MODEL, recipe="trl-grpo", gpus="8xH100-80GB"))
        self.refused("CMD has no {bs}", self.rehearse(MODEL, "--search", "bs=1..4"))
        done = subprocess.run([VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--steps", "2", "--", "true"], capture_output=True, text=True,
                              check=False)
        self.refused("--steps: is a choice of a recipe, and --recipe NAME is missing", done)

    def test_libraries_that_are_missing_too_old_or_too_new_are_named_with_what_installs_them(self):
        python = fake_python.make(self.folder, {"torch": "2.11.0", "transformers": "4.57.1"})
        done = self.rehearse(MODEL, python=python)
        self.refused(f"transformers 4.57.1 is too old, accelerate is missing; install with: {python} -m pip ", done, 1)
        self.assertIn("'transformers>=", done.stderr)
        self.assertIn("'accelerate>=", done.stderr)
        python = fake_python.make(self.folder, {"torch": "2.11.0", "torchtune": "0.6.1", "torchao": "0.16.0"})
        done = self.rehearse(MODEL, recipe="torchtune", python=python)
        self.refused(f"torchao 0.16.0 is too new; install with: {python} -m pip ", done, 1)
        self.assertIn(" 'torchao>=0.9,<0.16' ", done.stderr)
        python = fake_python.make(self.folder, {"torch": "2.11.0", "torchtune": "0.7.0.dev1", "torchao": "0.15"})
        self.refused("torchtune 0.7.0.dev1 is too new; install with", self.rehearse(MODEL, recipe="torchtune", python=python), 1)
        python = fake_python.make(self.folder, {"torch": "2.11.0", "torchtune": "0.6.0", "torchao": "0.15"})
        self.refused("torchtune 0.6.0 is too old; install with", self.rehearse(MODEL, recipe="torchtune", python=python), 1)
        self.refused("does not run a few lines of Python", self.rehearse(MODEL, python="/bin/true"), 1)

    def test_the_script_has_the_choices_and_is_kept_with_a_model_of_zeros(self):
        kept = self.path("kept")
        done = self.rehearse(MODEL, "--keep", kept, "--micro-batch", "3", "--optimizer", "adafactor", "--gradient-checkpointing", "on", "--json")
        report = json.loads(done.stdout)
        self.assertEqual(report["ranks"][0]["peak_allocated_bytes"], 3 << 30)
        with open(os.path.join(kept, "train.py"), encoding="utf-8") as file:
            script = file.read()
        for line in (f'MODEL = "{kept}/model"', "MICRO_BATCH = 3", 'OPTIMIZER = "adafactor"', 'GRADIENT_CHECKPOINTING = "on"', "SEQ_LEN = 1024"):
            self.assertIn(f"\n{line}  # --", script)
        self.assertIn(script + " 1\n", done.stderr)  # what ran is what is kept, and the hub was out of its reach
        self.assertEqual(sorted(os.listdir(os.path.join(kept, "model"))),
                         ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
        weights = os.stat(os.path.join(kept, "model", "model.safetensors"))
        self.assertGreater(weights.st_size, 1000 * weights.st_blocks)
        self.assertTrue(os.path.exists(os.path.join(kept, "session", "session.json")))
        notes = "\n".join(report["notes"])
        for text in ("torch 2.11.0+cu130, transformers 5.23.0, accelerate 1.15.0", "--micro-batch 3", "--steps 3", f"{kept}/train.py"):
            self.assertIn(text, notes)

    def test_nothing_stays_if_nothing_is_kept(self):
        temporary = self.path("temporary")
        os.mkdir(temporary)
        environment = {**os.environ, "TMPDIR": temporary}
        done = subprocess.run([VRAMFIT, "rehearse", "--recipe", "trainer", "--gpus", "1xH100-80GB", "--python", self.python, MODEL],
                              env=environment, capture_output=True, text=True, check=False)
        self.assertIn("FITS: 1.5 of 79.1 GiB", done.stdout)
        self.assertEqual(os.listdir(temporary), [])

    def test_several_gpus_get_a_launcher_and_a_rank_alone_none(self):
        words = json.loads(self.rehearse(MODEL, "--json", gpus="2xH100-80GB").stdout)["command"]
        self.assertEqual(words[1:6], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
        alone = json.loads(self.rehearse(MODEL, "--json", "--ranks", "1", gpus="2xH100-80GB").stdout)
        self.assertEqual(([os.path.basename(word) for word in alone["command"]], alone["ranks"][0]["ranks"]), (["python", "train.py"], [1, 1]))

    def test_a_choice_is_searched_and_kept_whatever_the_folder_is_called(self):
        flags = [MODEL, "--micro-batch", "{bs}", "--search", "bs=70..80", "--cache", self.path("cache")]
        first = self.rehearse(*flags)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("largest bs that fits: 78 ", first.stdout)
        again = self.rehearse(*flags)
        self.assertIn("bs=78: fits (cached)", again.stderr)
        self.assertNotIn("MICRO_BATCH", again.stderr)
        self.assertNotIn("(cached)", self.rehearse(*flags, "--steps", "2").stderr)


if __name__ == "__main__":
    unittest.main()
