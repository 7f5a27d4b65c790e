"""What is built is hardened: each compile command asks for it, and programs and libraries that users get show it.
Usage: binaries.py BUILD_TYPE"""

import json
import os
import pathlib
import re
import subprocess
import sys

from tree import ROOT, report

PROGRAMS = pathlib.Path(os.environ["VRAMFIT_BIN_DIR"])
BUILD = PROGRAMS.parent
STAND_INS = BUILD / "lib" / "phantom"
# Programs and libraries of ours, with arrays on the stack and calls that glibc has a checking form of.
WITH_CODE = {"vramfit", "vramfit-train", "libvramfit-phantom.so"}
CHECKED_CALL = re.compile(r" __(mem|str|sn?printf|vsn?printf|read|recv|poll|fd)\w*_chk@")


def readelf(path):
    return subprocess.run(["readelf", "--wide", "--file-header", "--dynamic", "--program-headers", "--dyn-syms", path],
                          capture_output=True, text=True, check=True).stdout


def runpath(text):
    return re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)


def problems_of_layout(text, is_program):
    if not re.search(r"Type: +DYN ", text):
        yield "can't be loaded at any address"
    if is_program and not re.search(r"FLAGS_1\).*\bPIE\b", text):
        yield "is no PIE"
    if "GNU_RELRO" not in text or not re.search(r"FLAGS(_1)?\).*\b(BIND_)?NOW\b", text):
        yield "has no full RELRO"
    if not re.search(r"GNU_STACK .* RW ", text):
        yield "has an executable stack"


def problems_of_code(text, fortified):
    if " __stack_chk_fail@" not in text:
        yield "has no stack protector"
    if fortified and not CHECKED_CALL.search(text):
        yield "calls nothing in the form that checks sizes"


def allowed_runpath(path):
    """LibTorch's folder for the engine, the folder of stand-ins for each of them; nothing of where this was built besides."""
    if path.name == "vramfit-train":
        return re.compile(r"[^:]*/site-packages/torch/lib")
    if path.is_relative_to(STAND_INS):
        return re.compile(r"\$ORIGIN(/\.\.)?")
    return re.compile("(?!)")


def problems_of(path, fortified):
    text = readelf(path)
    yield from problems_of_layout(text, path.parent == PROGRAMS)
    if path.name in WITH_CODE:
        yield from problems_of_code(text, fortified)
    for found in runpath(text):
        if not allowed_runpath(path).fullmatch(found):
            yield f"looks for libraries in {found}"


def problems_of_commands(fortified):
    """Each source is compiled with the flags, also where no function of it needs them today. Where the engine includes LibTorch,
    -fopenmp is one of them: without it at::parallel_for, a header, is serial."""
    wanted = ["-fstack-protector-strong"] + (["-D_FORTIFY_SOURCE=2"] if fortified else [])
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        words = entry["command"].split()
        source = pathlib.Path(entry["file"])  # or several sources together (cmake/Unity.cmake)
        engine = any(source.is_relative_to(folder / "executor") for folder in (ROOT, BUILD)) and any(word.endswith("/torch/include") for word in words)
        for flag in wanted + (["-fopenmp"] if engine else []):
            if flag not in words:
                yield f"{entry['file']}: compiled without {flag}"


def main():
    fortified = sys.argv[1] in ("Release", "RelWithDebInfo", "MinSizeRel")
    paths = [PROGRAMS / "vramfit", PROGRAMS / "vramfit-train", *sorted(STAND_INS.rglob("*.so*"))]
    problems = list(problems_of_commands(fortified))
    problems += [f"{path.relative_to(BUILD)} {problem}" for path in paths for problem in problems_of(path, fortified)]
    if len(paths) < 10:
        problems.append(f"only {len(paths)} programs and libraries were found")
    return report(problems, "binaries")


if __name__ == "__main__":
    sys.exit(main())
