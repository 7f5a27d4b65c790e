"""find_package(vramfit) finds what `cmake --install` copies: examples/cpp is built with it, and says what the program says.

Usage: find_package_test.py BUILD_DIRECTORY COMPILER
"""
import os
import subprocess
import sys
import tempfile

EXAMPLE = os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "examples", "cpp")
PROGRAM = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
JOB = ["HuggingFaceTB/SmolLM2-135M", "2xH100-80GB"]


def run(*words, expected=0):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == expected, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def configure(source, build, prefix):
    return ["cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={sys.argv[2]}"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        prefix, build = os.path.join(folder, "prefix"), os.path.join(folder, "build")
        run("cmake", "--install", sys.argv[1], "--prefix", prefix, "--component", "development")
        run(*configure(EXAMPLE, build, prefix))
        run("cmake", "--build", build)
        example = os.path.join(build, "fits")
        needs = run(example, *JOB, "micro-batch=2").splitlines()[1]
        needed, capacity = needs.removeprefix("needs ").removesuffix(" GiB").split(" GiB of ")
        said = run(PROGRAM, "estimate", JOB[0], "--gpus", JOB[1], "--micro-batch", "2", "--stack", "vramfit").splitlines()[0]
        assert said.startswith(f"FITS: {needed} of {capacity} GiB with vramfit's own engine, "), (needs, said)
        assert 'did you mean "micro_batch"' in run(example, *JOB, "micro-bach=2", expected=1)

        newer = os.path.join(folder, "newer")
        os.mkdir(newer)
        with open(os.path.join(newer, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write("cmake_minimum_required(VERSION 3.25)\nproject(newer LANGUAGES CXX)\nfind_package(vramfit 99 REQUIRED)\n")
        assert "compatible with" in " ".join(run(*configure(newer, build + "-newer", prefix), expected=1).split())


if __name__ == "__main__":
    main()
