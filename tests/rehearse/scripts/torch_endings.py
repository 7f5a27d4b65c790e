"""Makes tensors on a GPU and lets go of them, in a fixed order, and logs each step once it is done; then waits. No module is called, so the program never comes
to the end of a phase.

Usage: torch_endings.py LOG HOW    (HOW: exit, wait)
"""
import os
import sys
import time

MIB, STEPS = 1 << 20, 300


def plan(step):
    """("take", bytes) or ("give", index of the tensor that is let go of)"""
    return ("give", step % 2) if step % 3 == 2 else ("take", 2 * MIB * (5 + step * 7 % 40))


def main():
    import torch
    log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, f"{os.getpid()}\n".encode())
    tensors = []
    for step in range(STEPS):
        what, how_much = plan(step)
        if what == "take":
            tensors.append(torch.zeros(how_much, dtype=torch.uint8, device="cuda"))
        else:
            tensors.pop(how_much)
        os.write(log, b"done\n")
        time.sleep(0.001)
    if sys.argv[2] == "wait":
        time.sleep(600)


if __name__ == "__main__":
    main()
