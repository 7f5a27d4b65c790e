"""Known values that go between host and card: on streams, from pinned memory, and by way of numpy."""
import contextlib

import torch
from torch.utils.data import DataLoader

from draws import draws


def _another_stream(device):
    """A stream of a program's own; on the CPU there is none."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else contextlib.nullcontext()


def pinned(tensor, device):
    return tensor.pin_memory() if device == "cuda" else tensor


def uploads_beside_computing(device):
    sizes = []
    for step in range(3):
        with _another_stream(device):
            ids = pinned(draws(32, 5, "cpu", seed=step), device).to(device, non_blocking=True)
            mask = ids > 2
        if device == "cuda":
            event = torch.cuda.Event()
            event.record()
            torch.cuda.current_stream().wait_event(event)
            mask.record_stream(torch.cuda.current_stream())
        sizes.append(torch.zeros(32, 2, device=device)[mask].shape[0])
    return sizes


def counts_read_late(device):
    """Counts are copied into a pinned buffer, and read after the copy's event."""
    counts = torch.bincount(draws(64, 4, device), minlength=4)
    buffer = pinned(torch.zeros(4, dtype=torch.long), device)
    with _another_stream(device):
        buffer.copy_(counts, non_blocking=True)
    if device == "cuda":
        torch.cuda.synchronize()
    return [part.shape[0] for part in torch.zeros(64, device=device).split(buffer.tolist())]


def by_way_of_numpy(device):
    import numpy
    ids = draws(16, 7, device)
    counts = numpy.bincount(ids.cpu().numpy(), minlength=7)
    back = torch.from_numpy(numpy.flatnonzero(counts)).to(device)
    return [counts.tolist(), (ids[:, None] == back).any(0).all().item(), ids[back].tolist()]


def batches_of_a_loader(device):
    rows = [(torch.tensor([n, n + 1, n % 3]), n % 4) for n in range(10)]
    sizes = []
    for ids, label in DataLoader(rows, batch_size=4, pin_memory=device == "cuda"):
        ids, label = ids.to(device, non_blocking=True), label.to(device, non_blocking=True)
        sizes.append([ids[label > 0].shape[0], int((ids == 0).sum()), ids.amax().item()])
    return sizes


def overwritten_while_known(device):
    """A buffer for each batch is the same memory: what it held before must not be taken for what it holds."""
    buffer, seen = torch.zeros(16, dtype=torch.long, device=device), []
    for step in range(3):
        buffer.copy_(draws(16, 6, "cpu", seed=step), non_blocking=True)
        half = buffer[:8].clone()
        buffer[8:] = half
        seen.append([int((buffer > 2).sum()), half.unique().shape[0]])
        del half
        torch.empty(8, dtype=torch.long, device=device).fill_(step)
    return seen


def changed_types(device):
    ids = draws(12, 9, device)
    as_float = ids.to(torch.float32).to("cpu").to(device, torch.bfloat16)
    return [(as_float == ids).all().item(), as_float.int().bincount().tolist(), ids.to(torch.int8).to(torch.bool).sum().item(), ids.double().mean().item()]
