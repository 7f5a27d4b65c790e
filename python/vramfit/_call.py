"""Calls a function that another process named: `python _call.py FILE`, FILE being what _rehearse.py writes."""
import functools
import importlib
import importlib.util
import os
import pickle
import sys


def load(name, file):
    """The module by its name if that leads to the same file, as with a package; otherwise the file. A main script is not run as such."""
    try:
        spec = importlib.util.find_spec(name) if name != "__main__" else None
    except (ImportError, ValueError):
        spec = None
    if spec is not None and (not file or (spec.origin and os.path.abspath(spec.origin) == file)):
        return importlib.import_module(name)
    alias = "__vramfit_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(alias, file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file}: is not a Python source, so a function in it can't be rehearsed")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    if name == "__main__":
        sys.modules["__mp_main__"] = module
    spec.loader.exec_module(module)
    return module


def main():
    with open(sys.argv[1], "rb") as file:
        call = pickle.load(file)
    sys.argv[1:] = []
    hooks = os.path.join(os.environ.get("VRAMFIT_PHANTOM_LIB", ""), "python")  # what asks torch for its statistics
    sys.path[:] = [*call["path"], *[entry for entry in sys.path if entry == hooks]]
    function = functools.reduce(getattr, call["name"].split("."), load(call["module"], call["file"]))
    args, kwargs = pickle.loads(call["arguments"])
    function(*args, **kwargs)


if __name__ == "__main__":
    main()
