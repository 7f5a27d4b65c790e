"""vramfit.Warm: rehearsals that are forks of a process with torch imported, whose figures are those of any other."""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import package
import vramfit

H100 = "1xH100-80GB"
MIB = 1 << 20


# As bitsandbytes and torchao do.
ASKS = """import torch
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == torch.cuda.get_device_capability(torch.cuda.device(0)) == (9, 0)
assert torch.cuda.get_device_properties(torch.cuda.current_device()).name.startswith("NVIDIA H100")
"""
USES = "import torch; torch.zeros(1, device='cuda')"


def allocate(mebibytes):
    import torch
    torch.zeros(mebibytes * MIB, dtype=torch.uint8, device="cuda")


def end_badly(how):
    import torch
    torch.zeros(MIB, device="cuda")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError(how)


def leave_a_child():
    subprocess.Popen(["sleep", "1000"])


class Forks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        for name, text in (("asks", ASKS), ("uses", USES)):
            with open(os.path.join(cls.folder, name + ".py"), "w", encoding="utf-8") as out:
                out.write(text)
        os.environ["PYTHONPATH"] = f"{cls.folder}:{os.environ.get('PYTHONPATH', '')}"
        cls.warm = vramfit.Warm("asks")

    @classmethod
    def tearDownClass(cls):
        cls.warm.close()

    def test_figures_are_those_of_a_process_of_its_own(self):
        for kwargs in ({"gpus": H100}, {"gpus": "4xA100-40GB", "ranks": 3}):
            mine = self.warm.rehearse(allocate, args=(64,), **kwargs)
            other = vramfit.rehearse(allocate, args=(64,), **kwargs)
            self.assertEqual(mine.verdict, "fits")
            self.assertEqual(mine.json["ranks"], other.json["ranks"])
            self.assertEqual(mine.json["ranks"][0]["source"], "torch")  # its own statistics
            self.assertEqual(mine.json["values"], other.json["values"])

    def test_a_script_gets_its_arguments(self):
        found = self.warm.rehearse([__file__, "allocate", "128"], gpus=H100)
        self.assertEqual((found.verdict, found.worst.peak_allocated_bytes), ("fits", 128 * MIB))

    def test_what_does_not_fit_or_fails_is_an_answer(self):
        self.assertEqual(self.warm.rehearse(allocate, args=(100 << 10,), gpus=H100).verdict, "does_not_fit")
        self.assertEqual(self.warm.rehearse(end_badly, args=("raised",), gpus=H100).verdict, "failed")
        killed = self.warm.rehearse(end_badly, args=("killed",), gpus=H100)
        self.assertEqual((killed.verdict, killed.exit_code), ("failed", -1))

    def test_a_module_that_uses_a_gpu_is_named(self):
        with self.assertRaisesRegex(vramfit.VramfitError, "uses uses a GPU while it is imported"):
            vramfit.Warm("uses")

    def test_several_at_once(self):
        found = {}
        threads = [threading.Thread(target=lambda size=size: found.update({size: self.warm.rehearse(allocate, args=(size,), gpus=H100)}))
                   for size in (32, 64, 96)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({size: result.worst.peak_allocated_bytes for size, result in found.items()}, {size: size * MIB for size in (32, 64, 96)})

    def test_what_it_leaves_behind_is_ended(self):
        found = self.warm.rehearse(leave_a_child, gpus=H100)
        self.assertTrue(any("left" in note for note in found.notes), found.notes)

    def test_the_program_s_errors_are_exceptions(self):
        with self.assertRaisesRegex(vramfit.InputError, "H100"):
            self.warm.rehearse(allocate, args=(1,), gpus="1xH100-80G")
        with self.assertRaisesRegex(vramfit.InputError, "without --search"):
            self.warm.rehearse([__file__, "allocate", "{size}"], gpus=H100, search="size=1..2")


class Tests(unittest.TestCase):
    def test_a_rehearsed_test_can_be_a_fork(self):
        with vramfit.Warm("torch") as warm:
            marked = vramfit.rehearsal(H100, warm=warm, most_bytes=1 << 30)
            self.assertIsNone(marked(allocate)(8))
            with self.assertRaisesRegex(vramfit.RehearsalFailed, "are allowed"):
                marked(allocate)(2048)


class Starts(unittest.TestCase):
    def test_a_module_that_cannot_be_imported_is_named(self):
        with self.assertRaisesRegex(vramfit.VramfitError, "No module named 'no_such_module'"):
            vramfit.Warm("no_such_module")

    def test_the_variable_is_no_way_to_another_s_process(self):
        for value in ("1:0", f"{os.getpid()}:1", "x", ":", "999999999999:3", "-1:-1"):
            done = subprocess.run([os.environ["VRAMFIT_PROGRAM"], "rehearse", "--gpus", H100, "--", "true"], capture_output=True, text=True,
                                  check=False, env={**os.environ, "VRAMFIT_WARM": value})
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(f"VRAMFIT_WARM={value}: no process", done.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["allocate"]:
        allocate(int(sys.argv[2]))
    else:
        unittest.main()
