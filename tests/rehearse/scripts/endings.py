"""Takes memory, makes communicators and reads what no kernel wrote, in a fixed order, and logs each step once it is done; then
ends as it is told. Only the libraries of CUDA, so that it starts in no time.

Usage: endings.py LOG HOW    (HOW: exit, _exit, C's _exit, abort, fork, wait)
"""
import ctypes
import os
import sys
import time

STEPS = 300
MIB = 1 << 20


def plan(step):
    """What a step does: ("take", bytes), ("give", index of the block that is freed), ("join", 0) or ("read", bytes)."""
    if step % 60 == 7:
        return "join", 0
    if step % 5 == 3:
        return "read", 64 * (step + 1)
    if step % 3 == 2:
        return "give", step % 2
    return "take", (1 + step * 7 % 90) * MIB + step % 4 * 1000


class Cards:
    def __init__(self):
        self.runtime, self.nccl = ctypes.CDLL("libcudart.so.13"), ctypes.CDLL("libnccl.so.2")
        self.blocks, self.kept = [], []

    def take(self, size):
        block = ctypes.c_void_p()
        assert self.runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size)) == 0
        self.blocks.append(block)

    def give(self, index):
        assert self.runtime.cudaFree(self.blocks.pop(index)) == 0

    def read(self, size):
        host = ctypes.create_string_buffer(size)
        assert self.runtime.cudaMemcpy(host, self.blocks[-1], ctypes.c_size_t(size), 2) == 0

    def join(self, _):
        class Id(ctypes.Structure):
            _fields_ = [("text", ctypes.c_char * 128)]

        made, name = ctypes.c_void_p(), Id()
        assert self.nccl.ncclGetUniqueId(ctypes.byref(name)) == 0
        assert self.nccl.ncclCommInitRank(ctypes.byref(made), 1, name, 0) == 0
        self.kept.append(made)


def main():
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, f"{os.getpid()}\n".encode())
    cards = Cards()
    for step in range(STEPS):
        what, how_much = plan(step)
        getattr(cards, what)(how_much)
        os.write(log, b"done\n")
        time.sleep(0.001)
    end(sys.argv[2], cards)


def end(how, cards):
    if how == "_exit":
        os._exit(3)
    if how == "C's _exit":
        ctypes.CDLL(None)._exit(3)
    if how == "abort":
        os.abort()
    if how == "fork":
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        cards.take(1000 * MIB)  # the parent's own goes on
    if how == "wait":
        time.sleep(600)


if __name__ == "__main__":
    main()
