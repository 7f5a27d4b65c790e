"""torchao's AdamW with 8-bit states ("8bit") and its optimizer whose states live on the host ("offload")."""
import sys

import torch
from torchao.optim import AdamW8bit, CPUOffloadOptimizer


def main():
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
    if sys.argv[1] == "8bit":
        optimizer = AdamW8bit(model.parameters(), lr=1e-3)
    else:
        optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=False, fused=True)
    for _ in range(3):
        model(torch.randn(64, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), f"resident {torch.cuda.memory_stats()['requested_bytes.all.current']}")


if __name__ == "__main__":
    main()
