"""Programs at the limit of a card. Usage: limits.py NAME"""
import sys

import torch
from torch import nn

from tiny import LanguageModel, loss_of, on_card, say_held, tokens


def too_large():
    """2.5 billion weights, whose gradients and moments have no room on 24 GB."""
    model = on_card(LanguageModel, 50, 2048)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        loss_of(model, tokens(step, rows=1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def halved_batch():
    """The batch is halved until it fits."""
    model = on_card(lambda: nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))))
    optimizer = torch.optim.SGD(model.parameters())
    rows = 1 << 20
    while True:
        try:
            for _ in range(2):
                model(torch.randn(rows, 4096, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            break
        except torch.cuda.OutOfMemoryError:
            optimizer.zero_grad()
        torch.cuda.empty_cache()
        rows //= 2
    print("rows", rows)
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
