"""The files that the style checks look at: those git tracks, or all when there is no git."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = {"base", "cli", "cmake", "configs", "docs", "estimator", "examples", "executor", "job", "model_specs", "phantom", "planner", "program", "python",
           "scripts", "tests"}
CODE = {".cpp", ".h", ".cu", ".cuh", ".c", ".py", ".cmake", ".sh"}


def tracked_files():
    """Paths relative to ROOT, sorted; new files in FOLDERS that git does not ignore are included."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        paths = [pathlib.Path(line) for line in listed]
    except (OSError, subprocess.CalledProcessError):
        paths = [p.relative_to(ROOT) for p in ROOT.rglob("*")]
    paths = {p for p in paths if len(p.parts) == 1 or p.parts[0] in FOLDERS or p.parts[0] == ".ci"}
    return sorted(p for p in paths if (ROOT / p).is_file() and not (ROOT / p).is_symlink())


def is_code(path):
    return path.suffix in CODE or path.name == "CMakeLists.txt"


def report(problems, what):
    """Prints one line a problem; returns the exit status."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problems")
    return 1 if problems else 0
