"""Who reads a value: the innermost line outside torch, and what it does with it, as far as its source tells; and the innermost line
of the program's own, if a library reads for it."""

import ast
import functools
import linecache
import os
import sys
import sysconfig

OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
PRINTING = {"print", "log", "info", "debug", "warning", "error", "write", "format", "append", "update", "add_scalar", "set_postfix"}
CHOICE = "choice"  # `a if test else b`: Python asks for the test's truth at the place of the whole


def caller():
    """("train.py:12" or "library/loop.py:3, called by train.py:12";
    "condition", "finite" (isnan(...)), "printed", "formatted" (a tensor, by torch) or "other")"""
    torch = os.path.dirname(sys.modules["torch"].__file__) + os.sep
    frame, is_formatted = sys._getframe(2), False
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((torch, OWN, "<frozen")):
            return line_of(frame) + called_by(frame), "formatted" if is_formatted else expression_at(path, *position(frame))
        is_formatted = is_formatted or path == torch + "_tensor_str.py"
        frame = frame.f_back
    return "a thread without Python code, such as autograd's", "other"


def line_of(frame):
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def called_by(frame):
    """Of a library's line, the innermost line that is no library's: it says which of its calls the program could change."""
    if not is_library(frame.f_code.co_filename):
        return ""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f", called by {line_of(frame)}"


@functools.lru_cache(maxsize=4096)
def is_library(path):
    """Python's own, installed, ours, or no file at all."""
    standard = [sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")]
    installed = any(f"{os.sep}{folder}{os.sep}" in path for folder in ("site-packages", "dist-packages"))
    return installed or path.startswith(("<", OWN, *standard))


def position(frame):
    """(line, column) of the first character and after the last of what is evaluated, if this Python tells (3.11 and later), or the line alone."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is not None and frame.f_lasti >= 0:
        for index, (line, last_line, column, last_column) in enumerate(positions()):
            if index == frame.f_lasti // 2 and column is not None:
                return (line, column), (last_line, last_column)
    return (frame.f_lineno, None), None


def shown(path):
    """Relative to the working directory, or from the folder of installed packages on."""
    for folder in (os.getcwd(), *sorted(sys.path, key=len, reverse=True)):
        if folder and path.startswith(folder.rstrip(os.sep) + os.sep):
            return path[len(folder.rstrip(os.sep)) + 1:]
    return path


@functools.lru_cache(maxsize=4096)
def expression_at(path, begin, end):
    spans = spans_of(path)
    if end is None:
        around = [(size, what) for first, last, size, what in spans if first[0] <= begin[0] <= last[0]]
    elif any((first, last, what) == (begin, end, CHOICE) for first, last, _, what in spans):
        return "condition"
    else:
        around = [(size, what) for first, last, size, what in spans if first <= begin < last]
    return min(((size, what) for size, what in around if what != CHOICE), default=(0, "other"))[1]


@functools.lru_cache(maxsize=64)
def spans_of(path):
    """[(first and last (line, column), size, what)] of conditions, and of what is printed."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    spans = []
    for node in ast.walk(tree):
        for part, what in parts_of(node):
            first, last = (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)
            spans.append((first, last, (last[0] - first[0], last[1] - first[1]), what))
    return spans


def parts_of(node):
    if isinstance(node, ast.IfExp):
        return [(node.test, "condition"), (node, CHOICE)]
    if isinstance(node, (ast.If, ast.While, ast.Assert)):
        return [(node.test, "condition")]
    if isinstance(node, ast.BoolOp):
        return [(node, "condition")]
    if isinstance(node, ast.comprehension):
        return [(test, "condition") for test in node.ifs]
    if isinstance(node, ast.JoinedStr):
        return [(node, "printed")]
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        what = "printed" if name in PRINTING else "finite" if name in ("isnan", "isinf", "isfinite") else None
        return [(part, what) for part in [*node.args, *(k.value for k in node.keywords)]] if what else []
    return []
