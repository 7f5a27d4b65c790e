"""vramfit.rehearse and @vramfit.rehearsal, of programs that call the CUDA runtime by ctypes."""
import ctypes
import os
import sys
import unittest

import package
import vramfit

GIB = 1 << 30
H100 = "1xH100-80GB"


def allocate(size):
    runtime, block = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
    status = runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size))
    if status:
        raise MemoryError(f"cudaMalloc: {status}")


@vramfit.rehearsal("8xH100-80GB", ranks=3)
def rehearsed_test(size, *, rank):
    assert os.environ["RANK"] == rank, os.environ["RANK"]
    allocate(size)


@vramfit.rehearsal(H100, most_bytes=GIB)
def frugal_test():
    allocate(2 * GIB)


class Commands(unittest.TestCase):
    def test_a_command_s_memory(self):
        found = vramfit.rehearse([sys.executable, __file__, "allocate", str(GIB)], gpus=H100)
        self.assertEqual((found.verdict, found.exit_code, found.values_certain), ("fits", 0, True))
        self.assertEqual(found.worst.peak_allocated_bytes, GIB)

    def test_a_failing_command_is_an_answer(self):
        found = vramfit.rehearse([sys.executable, "-c", "raise SystemExit(9)"], gpus=H100)
        self.assertEqual((found.verdict, found.exit_code, found.total_bytes), ("failed", 9, 0))

    def test_what_cannot_start_is_an_error(self):
        with self.assertRaisesRegex(vramfit.InputError, "not-a-program"):
            vramfit.rehearse(["not-a-program"], gpus=H100)
        with self.assertRaisesRegex(TypeError, "a command has its words"):
            vramfit.rehearse(["true"], gpus=H100, args=(1,))


class Functions(unittest.TestCase):
    def test_a_function_runs_in_a_process_of_its_own(self):
        found = vramfit.rehearse(allocate, gpus=H100, args=(3 * GIB,))
        self.assertEqual((found.verdict, found.worst.peak_allocated_bytes), ("fits", 3 * GIB))

    def test_an_exception_is_a_failure(self):
        self.assertEqual(vramfit.rehearse(allocate, gpus=H100, kwargs={"wrong": 1}).verdict, "failed")

    def test_a_function_without_a_name_is_refused(self):
        with self.assertRaisesRegex(TypeError, "by its name"):
            vramfit.rehearse(lambda: None, gpus=H100)


class Tests(unittest.TestCase):
    def test_a_test_runs_as_its_rank(self):
        self.assertIsNone(rehearsed_test(GIB, rank="3"))

    def test_a_test_that_does_not_fit_fails(self):
        with self.assertRaisesRegex(vramfit.RehearsalFailed, "does_not_fit: .*asked card 0 for") as caught:
            rehearsed_test(100 * GIB, rank="3")
        self.assertEqual(caught.exception.result.verdict, "does_not_fit")
        with self.assertRaisesRegex(vramfit.RehearsalFailed, "are allowed"):
            frugal_test()


if __name__ == "__main__":
    if sys.argv[1:2] == ["allocate"]:
        allocate(int(sys.argv[2]))
    else:
        unittest.main()
