"""Steps that are captured or compiled. Usage: captured.py NAME"""
import sys

import torch
from torch import nn

from tiny import WIDTH, LanguageModel, on_card, say_held, step_of

STEPS = 3


def cuda_graph():
    """A whole step is captured, as PyTorch's notes do it, and replayed."""
    model = on_card(lambda: nn.Sequential(nn.Linear(WIDTH, 2048), nn.ReLU(), nn.Linear(2048, WIDTH)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(1024, WIDTH, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        model(batch).square().mean().backward()
        optimizer.step()
    for _ in range(STEPS):
        batch.copy_(torch.randn(1024, WIDTH, device="cuda"))
        graph.replay()
    say_held()


def graphed_callable():
    body = on_card(lambda: nn.Sequential(nn.Linear(WIDTH, 2048), nn.ReLU(), nn.Linear(2048, WIDTH)))
    optimizer = torch.optim.AdamW(body.parameters())
    graphed = torch.cuda.make_graphed_callables(body, (torch.randn(256, WIDTH, device="cuda", requires_grad=True),))
    for _ in range(STEPS):
        graphed(torch.randn(256, WIDTH, device="cuda", requires_grad=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def compiled():
    model = on_card(LanguageModel)
    optimizer = torch.optim.AdamW(model.parameters())
    fast = torch.compile(model)
    for step in range(STEPS):
        step_of(fast, optimizer, step)
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
