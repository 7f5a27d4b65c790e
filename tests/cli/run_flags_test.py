"""The flags of `vramfit run` other than those that describe a job: names and values match the frozen list."""

import os
import re
import subprocess
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
FLAG = re.compile(r"^ {2,}(?:-\w,\s*)?(-[-\w]+) ?(\S*)")


def flags_of(text):
    """Each line that begins with a flag, as (name, values); values end where two spaces begin the help."""
    found = [FLAG.match(line) for line in text.splitlines()]
    return [(match[1], match[2]) for match in found if match]


def help_of(program, *arguments):
    return subprocess.run([os.path.join(BIN, program), *arguments, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


class RunFlags(unittest.TestCase):
    def run_flags(self):
        with open(os.path.join(SOURCE, "tests", "cli", "job_flags.txt"), encoding="utf-8") as file:
            of_the_job = [line.split()[0] for line in file]
        return [(name, values) for name, values in flags_of(help_of("vramfit", "run")) if name not in (*of_the_job, "--help")]

    def test_names_and_values_are_those_of_the_frozen_list(self):
        with open(os.path.join(SOURCE, "tests", "cli", "run_flags.txt"), encoding="utf-8") as file:
            frozen = file.read().splitlines()
        self.assertEqual(sorted(f"{name} {values}".rstrip() for name, values in self.run_flags()), sorted(frozen))


if __name__ == "__main__":
    unittest.main()
