"""vramfit.estimate and vramfit.plan: figures and errors of the program, as Python has them."""
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

import package
import vramfit


def printed(*words):
    done = subprocess.run([os.environ["VRAMFIT_PROGRAM"], *words, "--json"], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


class Estimates(unittest.TestCase):
    def test_figures_are_those_that_the_program_prints(self):
        found = vramfit.estimate("gpt2", gpus="2xH100-80GB", micro_batch=2, seq_len=512, freeze=["layers:0-1", "embeddings"], reshard_head=False)
        expected = printed("estimate", "gpt2", "--gpus", "2xH100-80GB", "--micro-batch", "2", "--seq-len", "512", "--freeze", "layers:0-1,embeddings")
        self.assertEqual(found.json, expected)
        worst = expected["ranks"][expected["worst"]]
        self.assertEqual((found.verdict, found.fits, found.total_bytes, found.job["micro_batch"]),
                         (expected["verdict"], True, worst["total_bytes"], 2))
        self.assertEqual([phase.peak_allocated_bytes for phase in found.worst.phases],
                         [phase["peak_allocated_bytes"] for phase in worst["phases"]])

    def test_that_it_does_not_fit_is_an_answer(self):
        found = vramfit.estimate("gpt2", gpus="1xH100-80GB", micro_batch=10000)
        self.assertEqual((found.verdict, found.fits), ("does_not_fit", False))
        self.assertGreater(found.total_bytes, found.capacity_bytes)
        self.assertEqual(str(found), f"does_not_fit: {found.why}")

    def test_the_program_s_errors_are_exceptions(self):
        for kind, code, message, call in [
                (vramfit.InputError, 2, "unknown flag", lambda: vramfit.estimate("gpt2", gpus="1xH100-80GB", micro_bach=2)),
                (vramfit.InputError, 2, "H100", lambda: vramfit.estimate("gpt2", gpus="1xH100-80G")),
                (vramfit.ModelError, 5, "/nowhere", lambda: vramfit.estimate("/nowhere/model", gpus="1xH100-80GB"))]:
            with self.subTest(message):
                with self.assertRaises(kind) as caught:
                    call()
                self.assertEqual(caught.exception.exit_code, code)
                self.assertIn(message, str(caught.exception))
                self.assertFalse(str(caught.exception).startswith("vramfit:"))


class Plans(unittest.TestCase):
    def test_a_plan_has_its_job_and_its_speed(self):
        found = vramfit.plan("gpt2", gpus="1xH100-80GB", seq_len=256)
        self.assertEqual((found.fits, found.job["seq_len"]), (True, 256))
        self.assertGreater(found.tokens_per_second, 0)

    def test_that_nothing_fits_is_an_answer(self):
        found = vramfit.plan("gpt2", gpus="1xH100-80GB", micro_batch=100000)
        self.assertEqual((found.verdict, found.fits, found.tokens_per_second, found.worst, found.total_bytes),
                         ("no_plan", False, None, None, 0))


class Program(unittest.TestCase):
    def test_a_missing_program_is_named(self):
        with mock.patch.dict(os.environ, {"VRAMFIT_PROGRAM": "", "PATH": "/nowhere"}):
            with self.assertRaisesRegex(vramfit.VramfitError, "neither in this package nor on PATH"):
                vramfit.estimate("gpt2", gpus="1xH100-80GB")

    def test_the_console_script_is_the_program(self):
        done = subprocess.run([sys.executable, "-c", "import vramfit._program as p; p.main()", "--version"], capture_output=True,
                              text=True, check=True, env={**os.environ, "PYTHONPATH": sys.path[0]})
        self.assertIn("vramfit", done.stdout)


if __name__ == "__main__":
    unittest.main()
