"""Eager experts, which take their tokens by an index: two steps of forward and backward. Prints how many tokens each gets, and the most bytes that were asked for."""
import torch
from torch import nn

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 8192, 512, 1024, 8, 2


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


def step(x, router, experts):
    weights, chosen = router(x).softmax(-1).topk(CHOSEN, dim=-1)
    out, sizes = torch.zeros_like(x), []
    for number, expert in enumerate(experts):
        rows, place = torch.where(chosen == number)
        sizes.append(rows.shape[0])
        out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
    out.sum().backward()
    return sizes


def main():
    router = nn.Linear(WIDTH, EXPERTS, bias=False, device="cuda")
    experts = nn.ModuleList(Expert() for _ in range(EXPERTS)).cuda()
    x = torch.zeros(TOKENS, WIDTH, device="cuda")
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        print("sizes", *step(x, router, experts))
        print("peak", torch.cuda.memory_stats()["requested_bytes.all.peak"])
        for parameter in [*router.parameters(), *experts.parameters()]:
            parameter.grad = None


if __name__ == "__main__":
    main()
