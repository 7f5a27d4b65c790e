"""Numbers that are the same on each device."""
import random

import torch


def draws(count, below, device, seed=1):
    draw = random.Random(seed)
    return torch.tensor([draw.randrange(below) for _ in range(count)], device=device)
