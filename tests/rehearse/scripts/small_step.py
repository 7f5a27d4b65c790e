"""Three steps of two linear layers, with the batch that is given, for searches."""
import argparse

import torch
from torch import nn

WIDTH = 512


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int)
    batch = parser.parse_args().bs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(batch, WIDTH, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
