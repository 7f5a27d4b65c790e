"""clang-format finds nothing to change. The one argument is the program."""
import subprocess
import sys

from tree import ROOT, report, tracked_files


def main():
    sources = [str(p) for p in tracked_files() if p.suffix in {".cpp", ".h", ".cu", ".cuh"}]
    run = subprocess.run([sys.argv[1], "--dry-run", "--ferror-limit=1", *sources], cwd=ROOT, capture_output=True, text=True,
                         check=False)
    problems = [line for line in run.stderr.splitlines() if "clang-format-violations" in line]
    if run.returncode and not problems:
        problems = [run.stderr.strip()]
    return report(problems, "clang-format")


if __name__ == "__main__":
    sys.exit(main())
