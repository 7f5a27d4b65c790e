"""Programs whose sizes and branches follow from values. Usage: steers.py NAME"""
import sys

import torch
from torch import nn

from tiny import VOCABULARY, WIDTH, LanguageModel, on_card, say_held, tokens

STEPS = 3


def unpadding():
    """Rows of different lengths are packed before the linears, as their mask says, and padded again."""
    model = on_card(lambda: nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        lengths = torch.tensor([100 + 60 * step, 256, 31, 7]).cuda()
        mask = torch.arange(256, device="cuda")[None] < lengths[:, None]
        rows = torch.randn(4, 256, WIDTH, device="cuda")[mask]
        print("rows", rows.shape[0])
        padded = torch.zeros(4, 256, WIDTH, device="cuda").masked_scatter(mask[..., None], model(rows))
        padded.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def tolist_split():
    """Tokens are sorted by their expert, which the host chose, and split by the counts."""
    experts = on_card(lambda: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    optimizer = torch.optim.AdamW(experts.parameters())
    draw = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        chosen = torch.randint(0, 8, (1024,), generator=draw).cuda()
        counts = torch.bincount(chosen, minlength=8).tolist()
        print("counts", *counts)
        parts = torch.randn(1024, WIDTH, device="cuda")[chosen.argsort()].split(counts)
        torch.cat([expert(part) for expert, part in zip(experts, parts)]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


class Experts(nn.Module):
    """Each token goes to two of 16 experts; each expert takes its tokens by an index."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 16, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2048), nn.SiLU(), nn.Linear(2048, WIDTH)) for _ in range(16))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        out, sizes = torch.zeros_like(x), []
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            sizes.append(rows.shape[0])
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out, sizes


def routing():
    """8192 tokens: what the experts keep for backward depends on how many each gets."""
    model = on_card(Experts)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        out, sizes = model(torch.randn(8192, WIDTH, device="cuda"))
        print("sizes", *sizes)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


def hard_examples():
    """Only what the loss finds hard is trained on: a mask that nobody can compute."""
    model = on_card(lambda: nn.Sequential(nn.Linear(WIDTH, 2048), nn.GELU(), nn.Linear(2048, WIDTH)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        losses = model(torch.randn(4096, WIDTH, device="cuda")).square().mean(-1)
        hard = losses[losses > losses.mean()]
        print("rows", hard.shape[0])
        hard.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


@torch.no_grad()
def beam_search():
    """Four beams are extended until all of them end."""
    model, beams, end = on_card(LanguageModel), 4, 2
    ids, scores = tokens(0, rows=beams, length=8), torch.zeros(beams, device="cuda")
    while ids.shape[1] < 24:
        following = model(ids)[:, -1].log_softmax(-1) + scores[:, None]
        scores, best = following.flatten().topk(beams)
        rows, token = best // VOCABULARY, best % VOCABULARY
        ids = torch.cat([ids[rows], token[:, None]], dim=1)
        if bool((ids[:, -1] == end).all()):
            break
    print("length", ids.shape[1])
    say_held()


@torch.no_grad()
def sampling():
    model, end = on_card(LanguageModel), 2
    ids = tokens(0, rows=4, length=8)
    alive = torch.ones(4, dtype=torch.bool, device="cuda")
    while ids.shape[1] < 40 and alive.any():
        token = torch.multinomial(model(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat([ids, token], dim=1)
        alive &= token[:, 0] != end
    print("length", ids.shape[1])
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
