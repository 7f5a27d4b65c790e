"""Whatever happens to a save, the newest committed checkpoint loads, and training continues as if nothing had happened."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import checkpoints
from checkpoints import Run, Workplace, copied, killed, steps_in

MOMENTS = 200 if "full" in sys.argv[1:] else 20


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A run of six steps, and what it had saved after step 2 and step 4."""
        cls.place = Workplace()
        cls.early = cls.place.fresh("early")
        cls.whole = cls.place.run("--save", cls.early, "--save-every", "2")
        assert cls.whole.code == 0, cls.whole.errors
        shutil.rmtree(os.path.join(cls.early, "step-00000006"))

    def goes_on(self, saved, at_least, ranks=1):
        """Resumes what a fault left; the run must end as the one without faults."""
        committed = steps_in(saved)
        self.assertGreaterEqual(max(committed, default=0), at_least)
        rest = self.place.run("--resume", saved, "--save", saved, ranks=ranks)
        self.assertEqual(rest.code, 0, rest.errors)
        self.assertNotIn("warning", rest.errors)
        self.assertEqual(rest.losses, self.whole_of(ranks).losses[committed[-1]:])
        self.assertEqual(rest.parameters, self.whole_of(ranks).parameters)

    def whole_of(self, ranks):
        return self.whole if ranks == 1 else self.whole_of_two

    def save_once(self, saved, fault, ranks=1, rank=0):
        """Goes on from `saved` to the end with one save, which removes the older checkpoints; a fault at one call."""
        return self.place.run("--resume", saved, "--save", saved, "--keep", "1", ranks=ranks,
                              environment={"VRAMFIT_FILE_FAULT": fault, "VRAMFIT_FILE_FAULT_RANK": str(rank)})

    def test_killed_at_every_call_of_a_save(self):
        calls, found = 0, set()
        while True:
            saved = copied(self.early, self.place.path("saved"))
            run = self.save_once(saved, f"kill@{calls + 1}")
            if run.code == 0:
                break
            calls += 1
            self.assertTrue(killed(run), run.errors)
            found.add(tuple(steps_in(saved)))
            self.goes_on(saved, 4)
        self.assertGreater(calls, 20)  # all of a save: files, manifest, rename, removal of the older ones
        self.assertEqual(found, {(2, 4), (2, 4, 6), (4, 6), (6,)})

    def test_another_rank_killed_at_every_call_of_a_save(self):
        saved = self.place.fresh("two")
        type(self).whole_of_two = self.place.run("--save", saved, "--save-every", "4", ranks=2)
        shutil.rmtree(os.path.join(saved, "step-00000006"))
        two = copied(saved, self.place.path("two-early"))
        for call in range(1, 100):
            copied(two, saved)
            run = self.save_once(saved, f"kill@{call}", ranks=2, rank=1)
            if run.code == 0:
                break
            self.assertNotIn(6, steps_in(saved))
            self.goes_on(saved, 4, ranks=2)
        self.assertGreater(call, 5)

    def test_killed_at_random_moments(self):
        generator = random.Random(int(os.environ.get("VRAMFIT_TEST_SEED", "11")))
        saved = self.place.fresh("saved")
        started = time.monotonic()
        self.place.run("--save", saved, "--save-every", "1", "--keep", "2")
        whole = time.monotonic() - started
        for _ in range(MOMENTS):
            self.place.fresh("saved")
            with subprocess.Popen(self.place.command("--save", saved, "--save-every", "1", "--keep", "2"), stderr=subprocess.PIPE, text=True) as run:
                time.sleep(generator.uniform(0.2, 1.1) * whole)
                run.send_signal(signal.SIGKILL)
                steps = sum(line.startswith("step ") for line in run.stderr)
            # A step that was printed had its predecessor's save begun, and the one before that committed.
            if steps_in(saved):
                self.goes_on(saved, steps - 2)
            else:
                self.assertLessEqual(steps, 2)

    def test_a_full_disk_and_a_read_only_one(self):
        for fault, word in [("no-space", "No space left"), ("read-only", "Read-only")]:
            for call in (1, 3, 4, 5, 10, 14):
                with self.subTest(fault=fault, call=call):
                    saved = copied(self.early, self.place.path("saved"))
                    run = self.save_once(saved, f"{fault}@{call}")
                    committed = steps_in(saved)
                    self.assertEqual(run.code, 0 if committed == [6] else 1, run.errors)
                    if run.code == 1:
                        self.assertIn(word, run.errors)
                        self.assertIn(saved, run.errors)
                    self.goes_on(saved, 4)

    def test_a_file_that_may_not_grow_and_a_directory_that_can_not_be_made(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        saved = copied(self.early, self.place.path("saved"))
        run = self.place.run("--resume", saved, "--save", saved, own=True, preexec_fn=limit, restore_signals=False)
        self.assertEqual(run.code, 1, run.errors)
        self.assertIn("rank-00000.safetensors", run.errors)
        self.goes_on(saved, 4)
        run = self.place.run("--save", "/proc/vramfit")
        self.assertEqual(run.code, 1, run.errors)
        self.assertIn("/proc/vramfit", run.errors)
        self.assertNotIn("step 1", run.errors)

    def flip(self, path, position):
        with open(path, "r+b") as f:
            f.seek(position)
            byte = f.read(1)[0]
            f.seek(position)
            f.write(bytes([byte ^ 0x10]))

    def test_a_damaged_checkpoint_is_skipped_with_a_warning(self):
        generator = random.Random(3)
        damages = []
        for name in ("rank-00000.safetensors", "manifest.json"):
            size = os.path.getsize(os.path.join(self.early, "step-00000004", name))
            damages += [lambda p=place, n=name: self.flip(os.path.join(saved, "step-00000004", n), p) for place in (0, size - 1, generator.randrange(size))]
            damages.append(lambda n=name: os.remove(os.path.join(saved, "step-00000004", n)))
            damages.append(lambda n=name: os.truncate(os.path.join(saved, "step-00000004", n), generator.randrange(100)))
        for damage in damages:
            saved = copied(self.early, self.place.path("saved"))
            damage()
            run = self.place.run("--resume", saved, "--save", saved)
            self.assertEqual(run.code, 0, run.errors)
            self.assertEqual(run.errors.count("warning: skipped: "), 1, run.errors)
            self.assertIn("step-00000004", run.errors)
            self.assertEqual(run.losses, self.whole.losses[2:])
            self.assertEqual(run.parameters, self.whole.parameters)
            self.assertEqual(steps_in(saved), [2, 6])
            self.assertIn("damaged-step-00000004", os.listdir(saved))

    def test_nothing_is_loaded_when_every_checkpoint_is_damaged(self):
        saved = copied(self.early, self.place.path("saved"))
        for step in (2, 4):
            self.flip(os.path.join(saved, f"step-{step:08}", "rank-00000.safetensors"), 5000)
        run = self.place.run("--resume", saved)
        self.assertEqual(run.code, 5, run.errors)
        self.assertEqual(len(run.errors.splitlines()), 3, run.errors)
        self.assertIn("checksum", run.errors)


if __name__ == "__main__":
    checkpoints.use_forks()
    unittest.main(argv=sys.argv[:1])
