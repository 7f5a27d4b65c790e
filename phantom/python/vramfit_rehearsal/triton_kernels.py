"""Kernels that a program writes in Triton: what a launch may have written is unknown, and nothing else (docs/values.md).

Core alone sees a launch's pointers but no sizes, and would take what lies beside a tensor for a part of it. Which of its pointers a
kernel writes to is in its code: JITFunction.run, which is not public, returns the compiled kernel with that."""

import ctypes
import os
import re

from vramfit_rehearsal import values

NAME = re.compile(r"%[\w#-]+")
FUNCTION = re.compile(r"tt\.func public @[\w.]+\((.*?)\) attributes", re.S)
# Pointers made of pointers. What else gets one, except a load, may write there: a store, a loop, a call.
DERIVED = ("tt.splat", "tt.addptr", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.reshape", "tt.trans")


def install(jit):
    """`jit` is the module triton.runtime.jit."""
    core = ctypes.CDLL(os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "libvramfit-phantom.so"))
    if not core.vramfit_values_are_wanted():
        return
    core.vramfit_operation_begin.argtypes = [ctypes.c_int64]
    core.vramfit_value_written_by.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
    launch = jit.JITFunction.run

    def run(self, *args, **kwargs):
        # Without the library of values nothing says how large a tensor is, and core looks at the pointers.
        if not values.loaded or not core.vramfit_operation_begin(0):
            return launch(self, *args, **kwargs)
        kernel = None
        try:
            kernel = launch(self, *args, **kwargs)
        finally:
            if core.vramfit_operation_end():
                arguments = {**dict(zip(self.arg_names, args)), **kwargs}
                for tensor in written_tensors(arguments, written_by(kernel)):
                    if memory := values.memory_of(tensor):
                        core.vramfit_value_written_by(ctypes.c_void_p(memory[0]), memory[1], name_of(self).encode())
        return kernel

    jit.JITFunction.run = run


def name_of(function):
    return getattr(function, "__name__", "a Triton kernel")


def written_tensors(arguments, names):
    """Those of the GPU, of all arguments if `names` is None."""
    return [value for name, value in arguments.items()
            if (names is None or name in names) and getattr(value, "is_cuda", False) and hasattr(value, "untyped_storage")]


found = {}  # by a kernel's hash


def written_by(kernel):
    """Names of the parameters that the kernel may write through; None: any."""
    try:
        if kernel.hash not in found:
            found[kernel.hash] = written_names(kernel.asm["ttir"])
        return found[kernel.hash]
    except Exception:  # of a Triton that keeps it elsewhere
        return None


def written_names(code):
    """The same, of a kernel in Triton's intermediate language; None if it has a form that isn't known here."""
    head = FUNCTION.search(code)
    if head is None or re.search(r"%arg\d+:", head.group(1)):
        return None
    come_from = {name: {name[1:]} for name in NAME.findall(re.sub(r"loc\([^)]*\)", "", head.group(1)))}
    written = set()
    for line in code[head.end():].splitlines():
        result, _, operation = line.partition(" = ") if re.match(r"\s*%[\w#, :%-]+ = ", line) else ("", "", line)
        words = operation.split()
        sources = set().union(*(come_from.get(name, ()) for name in NAME.findall(operation)))
        if words and words[0] in DERIVED:
            come_from.update((name, sources) for name in NAME.findall(result))
        elif words and words[0] != "tt.load":
            written |= sources
    return written
