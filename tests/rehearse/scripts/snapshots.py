"""Trains two steps, dumps a memory snapshot beside torch's own peaks, then runs out of memory with a snapshot of that moment.

python snapshots.py FOLDER [stacks]: writes FOLDER/steps.pickle, peaks.json and oom.pickle, and the message to standard error.
"""
import json
import os
import sys

import torch

FOLDER = sys.argv[1]
torch.cuda.memory._record_memory_history(stacks=sys.argv[2] if len(sys.argv) > 2 else "python")
torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot(os.path.join(FOLDER, "oom.pickle")))


def train(model, optimizer):
    inputs = torch.zeros(64, 256, device="cuda")
    loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def hoard():
    return [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(100)]


def main():
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        train(model, optimizer)
    torch.cuda.memory._dump_snapshot(os.path.join(FOLDER, "steps.pickle"))
    stats = torch.cuda.memory_stats()
    kinds = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    with open(os.path.join(FOLDER, "peaks.json"), "w", encoding="utf-8") as file:
        json.dump({f"{kind}.{what}": stats[f"{kind}.all.{what}"] for kind in kinds for what in ("current", "peak")}, file)
    hoard()


if __name__ == "__main__":
    main()
