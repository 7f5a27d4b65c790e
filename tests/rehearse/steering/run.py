"""Runs small programs whose sizes and branches follow from values, and prints a line for each: its name and what it did, as JSON.

Usage: run.py cpu|cuda MODULE...    (such as `routing`; each public function of a module is a program)
"""
import importlib
import inspect
import json
import sys


def programs(module):
    """(name, function) of each."""
    found = importlib.import_module(module)
    return [(name, each) for name, each in vars(found).items()
            if inspect.isfunction(each) and each.__module__ == module and not name.startswith("_") and list(inspect.signature(each).parameters) == ["device"]]


def trace(program, device):
    """Sizes, counts, branches and numbers that it read. An error is part of it."""
    try:
        return program(device)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main():
    device, modules = sys.argv[1], sys.argv[2:]
    for module in modules:
        for name, program in programs(module):
            print(json.dumps([f"{module}.{name}", trace(program, device)]), flush=True)


if __name__ == "__main__":
    main()
