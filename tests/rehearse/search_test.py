"""rehearse --search: the largest value that fits, kept results, and refusals, with programs that call the CUDA runtime by ctypes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "tests", "cli"))
from schemas_test import check, load  # noqa: E402

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
ALLOCATE = """import ctypes, sys
gib = int(sys.argv[1])
if gib == int(sys.argv[2]):
    sys.exit(9)
print("allocating")
block = ctypes.c_void_p()
sys.exit(ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(block), ctypes.c_size_t(gib << 30)))
"""


def search(folder, *flags, words=("{gib}", "0")):
    command = [sys.executable, os.path.join(folder, "allocate.py"), *words]
    return subprocess.run([VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", *flags, "--", *command], capture_output=True, text=True,
                          timeout=100, check=False)


class Search(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        with open(os.path.join(self.folder, "allocate.py"), "w", encoding="utf-8") as out:
            out.write(ALLOCATE)

    def test_the_largest_that_fits_is_found_and_kept(self):
        flags = ["--search", "gib=70..80", "--cache", os.path.join(self.folder, "cache")]
        first = search(self.folder, *flags)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("largest gib that fits: 78 (78.5 of 79.1 GiB); 79 does not fit\n", first.stdout)
        self.assertIn("gib=79: does_not_fit", first.stderr)
        again = search(self.folder, *flags, "--json")
        found = json.loads(again.stdout)
        schema = load("rehearsal-search.schema.json")
        check(found, schema, schema)
        self.assertEqual(found["rows"][0]["largest"], 78)
        self.assertTrue(all(trial["cached"] for trial in found["rows"][0]["trials"]))
        self.assertNotIn("allocating", again.stderr)

    def test_values_that_are_listed_are_all_tried(self):
        done = search(self.folder, "--search", "gib in 1,90", "--json")
        found, schema = json.loads(done.stdout), load("rehearsal-search.schema.json")
        check(found, schema, schema)
        trials = [row["trials"][0] for row in found["rows"]]
        self.assertEqual([(trial["verdict"], trial["exit_code"]) for trial in trials], [("fits", 0), ("does_not_fit", 6)])
        self.assertEqual(done.returncode, 0)

    def test_a_program_that_fails_is_named_with_its_values(self):
        done = search(self.folder, "--search", "gib=1..8", words=("{gib}", "4"))
        self.assertEqual(done.returncode, 9)
        self.assertIn("gib=4 could not be rehearsed: CMD ended with exit code 9", done.stdout)

    def test_what_makes_no_sense_is_refused(self):
        for flags, why in ((["--search", "gib=1..2", "--keep", "x"], "--keep: is of one rehearsal"), (["--cache", "x"], "--cache: keeps"),
                           (["--search", "gb=1..2"], "CMD has no {gb}"), (["--search", "gib=1..2", "--cache", "/"], "--cache")):
            done = search(self.folder, *flags)
            self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1), done.stderr)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
