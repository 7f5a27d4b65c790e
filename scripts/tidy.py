"""Runs clang-tidy in parallel and remembers which files were clean. Arguments: compile_commands.json, memory folder, paths to check."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOGETHER = ("-Wno-shadow", "-Wshadow=local", "-Wno-subobject-linkage", "-Wno-maybe-uninitialized")  # of sources that are compiled together; clang doesn't know all of them
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def without_pch(entry):
    """The command without g++'s precompiled header, which clang can't read."""
    words = shlex.split(entry["command"])
    kept, skip = [], False
    for word, following in zip(words, words[1:] + [""]):
        if skip:
            skip = False
        elif word == "-include" and "cmake_pch" in following:
            skip = True
        elif word != "-Winvalid-pch":
            kept.append(word)
    return {**entry, "command": shlex.join(kept)}


def one_by_one(entry):
    """Sources that are compiled together (cmake/Unity.cmake), each with the command for itself, and all warnings."""
    source = pathlib.Path(entry["file"])
    if source.parent.name != "together":
        return [entry]
    command = shlex.join(word for word in shlex.split(entry["command"]) if word not in TOGETHER)
    return [{**entry, "file": str(ROOT / name), "command": command.replace(entry["file"], str(ROOT / name))}
            for name in INCLUDE.findall(source.read_text(encoding="utf-8"))]


def own_files(source, seen):
    """The source and every header of ours that it includes, directly or not."""
    if source in seen or not source.is_file():
        return seen
    seen.add(source)
    for name in INCLUDE.findall(source.read_text(encoding="utf-8")):
        own_files(ROOT / name, seen)
    return seen


def fingerprint(entry):
    """Of the command, the settings and the sources; the same in every clone."""
    digest = hashlib.sha256(entry["command"].replace(str(ROOT), "").encode() + (ROOT / ".clang-tidy").read_bytes())
    for path in sorted(own_files(pathlib.Path(entry["file"]), set())):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check(entry, database, memory):
    mark = memory / fingerprint(entry)
    name = os.path.relpath(entry["file"], ROOT)
    if mark.exists():
        return name, True, ""
    run = subprocess.run(["clang-tidy", "--quiet", "-p", database, entry["file"]], capture_output=True, text=True, check=False)
    if run.returncode == 0 and mark == memory / fingerprint(entry):  # not when it was edited meanwhile
        mark.touch()
    return name, run.returncode == 0, run.stdout if run.stdout.strip() else run.stderr


def report(result):
    """Prints a file's findings as soon as they are known."""
    name, clean, output = result
    if not clean:
        print(f"{name}:\n{output}", flush=True)
    return name, clean


def main():
    memory = pathlib.Path(sys.argv[2])
    memory.mkdir(parents=True, exist_ok=True)
    wanted = [os.path.abspath(path) for path in sys.argv[3:]]
    commands = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    entries = [without_pch(entry) for command in commands for entry in one_by_one(command)]
    ours = [e for e in entries if not os.path.relpath(e["file"], ROOT).startswith(("build", ".."))]
    chosen = [e for e in ours if not wanted or any(e["file"].startswith(path) for path in wanted)]
    with tempfile.TemporaryDirectory() as database:
        pathlib.Path(database, "compile_commands.json").write_text(json.dumps(entries), encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("VRAMFIT_JOBS", os.cpu_count() or 1))) as pool:
            running = [pool.submit(check, entry, database, memory) for entry in chosen]
            results = [report(done.result()) for done in concurrent.futures.as_completed(running)]
    failed = sorted(name for name, clean in results if not clean)
    print(f"clang-tidy: {len(results)} sources, {len(failed)} with findings" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
