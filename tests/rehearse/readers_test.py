"""Which line is named as the one that reads a value: the innermost one outside torch, and that of the program's own if it is a library's.

Without torch: modules in a folder of their own stand for it and for a library.
"""
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "phantom", "python", "vramfit_rehearsal"))
import readers  # noqa: E402

TORCH = "import readers\n\n\ndef item():\n    return read()\n\n\ndef read():\n    return readers.caller()\n\n\ndef run(function):\n    return function()\n"
LIBRARY = "import torch\n\n\ndef clip():\n    if torch.item():\n        return None\n\n\ndef last():\n    return torch.item()\n\n\n" \
          "def step(function=None):\n    return last() if function is None else function()\n"
PROGRAM = "import library\nimport torch\n\n\ndef train():\n    return library.step()\n\n\ndef own():\n    return torch.item()\n\n\n" \
          "def callback():\n    return library.step(own)\n"


def write(folder, modules):
    for name, text in modules.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    sys.path.insert(0, folder)


def main():
    with tempfile.TemporaryDirectory() as folder:
        installed = os.path.join(folder, "lib", "site-packages")
        write(installed, {"torch/__init__.py": TORCH, "library/__init__.py": LIBRARY})
        write(os.path.join(folder, "own"), {"program.py": PROGRAM})
        os.mkdir(os.path.join(folder, "elsewhere"))
        os.chdir(os.path.join(folder, "elsewhere"))  # names are relative to the working directory, or else to the folder of a module
        import library  # pylint: disable=import-error,import-outside-toplevel
        import program  # pylint: disable=import-error,import-outside-toplevel
        for call, place in ((program.train, "library/__init__.py:10, called by program.py:6"), (program.own, "program.py:10"),
                            (program.callback, "program.py:10"), (library.last, f"library/__init__.py:10, called by readers_test.py:")):
            found, what = call()
            found = found[:len(place)] if place.endswith(":") else found
            assert (found, what) == (place, "other"), (call, found, place)
    for path, expected in ((os.__file__, True), ("<string>", True), ("/venv/lib/python3.11/site-packages/x.py", True), ("/data/train.py", False)):
        assert readers.is_library(path) == expected, path


if __name__ == "__main__":
    main()
