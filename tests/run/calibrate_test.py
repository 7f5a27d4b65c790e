"""`vramfit calibrate`: measures CPU ranks for a moment, writes a file that --calibration reads, and a run does the same."""

import json
import os
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")


def program(*arguments, name="vramfit"):
    return subprocess.run([os.path.join(BIN, name), *arguments], capture_output=True, text=True, timeout=300, check=False)


def step_seconds(*flags):
    done = program("estimate", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64", "--json", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["speed"]["step_seconds"]


class OnCpuRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="vramfit-calibrate-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.file = os.path.join(cls.folder.name, "figures.json")
        cls.done = program("calibrate", "--gpus", "2xcpu-1GiB", "--seconds", "1", "--threads", "1", "-o", cls.file)
        with open(cls.file, encoding="utf-8") as file:
            cls.written = json.load(file)

    def test_every_figure_is_measured_and_positive(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        figures = self.written["figures"]
        for key in ("product_share", "product_share_fp32", "attention_share_64", "attention_share_128", "attention_half_length", "attention_backward_share_128",
                    "memory_share", "launch_seconds", "link_share", "link_share_all_reduce", "collective_base_seconds"):
            value, origin = figures[key]
            self.assertGreater(value, 0, key)
            self.assertTrue(origin.startswith("measured: "), (key, origin))
        self.assertNotIn("host_link_share", figures)  # CPU ranks have no PCIe
        self.assertNotIn("network_share", figures)

    def test_what_was_measured_stands_beside_what_is_known(self):
        text = self.done.stdout
        for words in ("2xcpu-1GiB (2 ranks), measured in", "products, fp32", "attention, heads of 64, backward", "AdamW updates", "sums over ranks", "product_share",
                      "not measured: copies over PCIe", f"--gpus 2xcpu-1GiB --calibration {self.file}"):
            self.assertIn(words, text)

    def test_its_predictions_of_what_it_measured_are_nearer_than_known_figures(self):
        """One slow moment of the machine may spoil one kind of work, not most of them."""
        errors = self.written["errors"].values()
        nearer = [abs(each["of_these_figures"]) <= abs(each["of_known_figures"]) + 0.05 for each in errors]
        self.assertGreater(sum(nearer), len(nearer) / 2, self.written["errors"])

    def test_estimates_take_the_file_and_a_run(self):
        known, measured = step_seconds(), step_seconds("--calibration", self.file)
        self.assertNotEqual(known, measured)
        run = os.path.join(self.folder.name, "run.json")
        done = program("run", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64", "--steps", "4", "--threads", "1", "-o", run)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(run, encoding="utf-8") as file:
            record = json.load(file)
        # Longer than any launch, so that the speed of kernels can explain it.
        record["step_seconds"] = [9, 3, 2, 4]
        with open(run, "w", encoding="utf-8") as file:
            json.dump(record, file)
        self.assertAlmostEqual(step_seconds("--calibration", run), 3, delta=0.01)
        self.assertAlmostEqual(step_seconds("--calibration", self.file, "--calibration", run), 3, delta=0.01)

    def test_one_rank_has_no_collectives_and_json_is_the_file(self):
        done = program("calibrate", "--gpus", "1xcpu-1GiB", "--seconds", "0.5", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        written = json.loads(done.stdout)
        self.assertEqual((written["schema"], written["ranks"]), ("vramfit/calibration@1", 1))
        self.assertNotIn("link_share", written["figures"])
        self.assertIn("collectives: one rank has none", written["not_measured"])

    def test_the_executor_refuses_flags_and_clusters_that_it_was_not_started_for(self):
        for flags, said in ((["--gpus", "2xcpu-1GiB"], "has 2 ranks, 1 were started"), (["--gpus", "1xcpu-1GiB", "--speed", "1"], "--speed: unknown flag"),
                            ([], "needs FILE and --gpus"), (["--gpus"], "--gpus: needs a value")):
            done = program("--calibrate", os.path.join(self.folder.name, "m.json"), *flags, name="vramfit-train")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
