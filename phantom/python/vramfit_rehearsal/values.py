"""Values on phantom GPUs: loads the library that computes small ones (docs/values.md), made for the torch that the program uses, and
says of each value that is read though it is unknown or assumed who reads it, and whether sizes or branches follow from it."""

import ctypes
import os

from vramfit_rehearsal import layers, readers, values_library

ON_READ = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
LAYER_OF = ctypes.CFUNCTYPE(ctypes.c_int64)
FLOATING = 0  # of the last argument; 1: integer, 2: boolean
FINITE, VALUE, GHOSTS = 1, 16, 256  # bits of VramfitAssumption, and what ghosts sent, which core counts itself


class Read(ctypes.Structure):
    """VramfitRead of values/core.h."""
    _fields_ = [("kind", ctypes.c_char_p), ("assumptions", ctypes.c_int64), ("bytes", ctypes.c_int64),
                ("steers", ctypes.c_int32), ("place", ctypes.c_char_p)]


def install(torch, note):
    """Once torch uses a GPU: nothing before needs it, and many processes never do. _lazy_call is not public."""
    torch.cuda._lazy_call(lambda: start(torch, note))


def start(torch, note):
    core = ctypes.CDLL(os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "libvramfit-phantom.so"))
    core.vramfit_values_are_wanted.restype = ctypes.c_int32
    if not core.vramfit_values_are_wanted():
        return
    library, why_not = values_library.find(torch)
    if library is None:
        note(f"values are not computed, so what kernels would have written reads as zero: {why_not}")
        return
    library.vramfit_values_memory.restype = ctypes.c_void_p
    report = reporter(core)
    keep.append(report)
    number = LAYER_OF(layers.Layers(torch).number)
    keep.append(number)
    library.vramfit_values_install(report, number)
    loaded.append(library)


loaded = []  # one, if values are computed


def memory_of(tensor):
    """(where it begins, bytes), None if the tensor has none of its own or values are not computed."""
    if not loaded:
        return None
    size = ctypes.c_int64()
    address = loaded[0].vramfit_values_memory(ctypes.c_void_p(tensor._cdata), ctypes.byref(size))
    return (address, size.value) if address else None


keep = []  # what C calls must not be collected


def reporter(core):
    """Called by the library in the thread that reads."""
    def on_read(kind, assumptions, size, value_type):
        if assumptions == GHOSTS:
            return
        try:
            kind = kind.decode()
            place, expression = readers.caller()
            steers = steers_by(kind, value_type, expression)
            if expression == "finite" and assumptions == VALUE:
                assumptions = FINITE
            core.vramfit_value_read(ctypes.byref(Read(kind.encode(), assumptions, size, steers, place.encode())))
        except Exception:  # at the interpreter's end, modules are gone
            pass

    return ON_READ(on_read)


def steers_by(kind, value_type, expression):
    """A size always does, but where torch makes a text of a tensor. So do integers and booleans, unless they are only printed. A floating number
    does in a condition."""
    if expression == "formatted":
        return 0
    if kind.startswith("size of") or expression in ("condition", "finite"):
        return 1
    return int(value_type != FLOATING and expression != "printed")
