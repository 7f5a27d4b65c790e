"""Where vramfit looks for the engine: beside itself, and where pip puts what vramfit[train] asks for."""
import os
import shutil
import subprocess
import sys
import tempfile


def doctor(program):
    text = subprocess.run([program, "doctor"], capture_output=True, text=True, check=True).stdout
    line, = [line for line in text.splitlines() if line.startswith("executor")]
    return line.split(None, 1)[1]


def put(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\n")
    os.chmod(path, 0o755)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        program = os.path.join(folder, "vramfit", "bin", "vramfit")
        os.makedirs(os.path.dirname(program))
        shutil.copy(os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit"), program)
        assert doctor(program).endswith("run does not; build it with -DVRAMFIT_EXECUTOR=ON"), doctor(program)
        put(os.path.join(folder, "vramfit", "__init__.py"))
        assert doctor(program).endswith("run does not; pip has it as vramfit[train]"), doctor(program)
        of_package = os.path.join(folder, "vramfit_train", "bin", "vramfit-train")
        put(of_package)
        assert doctor(program) == of_package, doctor(program)
        beside = os.path.join(folder, "vramfit", "bin", "vramfit-train")
        put(beside)
        assert doctor(program) == beside, doctor(program)


if __name__ == "__main__":
    sys.exit(main())
