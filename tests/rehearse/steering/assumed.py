"""Programs steered by what nobody computes. What each does is written by hand, from the assumptions alone: with those that hold by default, and at the other end
(`routing=worst`, `selected=0.25`). A comment at the end of a line names the assumptions that a read on it rests on; `output` there: nothing follows from it.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH, EXPERTS = 96, 64, 8
EXPECTED = {}


def does(by_default, at_the_other_end=None):
    def with_expectation(program):
        EXPECTED[program.__name__] = (by_default, by_default if at_the_other_end is None else at_the_other_end)
        return program
    return with_expectation


def _hidden(device, rows=TOKENS, width=WIDTH):
    return nn.Linear(WIDTH, width, device=device)(torch.randn(rows, WIDTH, device=device))


@does([24] * 8, [96, 96, 0, 0, 0, 0, 0, 0])
def experts_by_masks(device):
    _, chosen = torch.topk(_hidden(device, width=EXPERTS).softmax(-1), 2)
    mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
    return [torch.where(each)[1].shape[0] for each in mask]  # routing


@does([[24] * 8, [24] * 8], [[96, 96, 0, 0, 0, 0, 0, 0]] * 2)
def experts_by_sorting(device):
    weights, chosen = _hidden(device, width=EXPERTS).sigmoid().topk(2, sorted=False)
    counts = chosen.flatten().bincount(minlength=EXPERTS)  # routing
    order = chosen.flatten().argsort(stable=True)
    rows = _hidden(device)[order // 2]
    sizes = counts.cpu().tolist()  # routing
    return [[part.shape[0] for part in rows.split(sizes)], counts.tolist()]  # routing


@does([80, 10, 112], [20, 10, 172])
def capacity(device):
    """Of 192 choices, an expert takes 10."""
    _, chosen = _hidden(device, width=EXPERTS).topk(2)
    chosen = F.one_hot(chosen.flatten(), EXPERTS)
    kept = (chosen.cumsum(0) * chosen > 0) & (chosen.cumsum(0) <= 10)
    fullest = int((kept & chosen.bool()).sum(0).max())  # routing
    rows = (chosen * kept).any(1)
    return [torch.zeros(2 * TOKENS, 4, device=device)[rows].shape[0], fullest, (~rows).sum().item()]  # routing


@does(["balanced", 8], ["one is full", 1])
def imbalance(device):
    chosen = _hidden(device, width=EXPERTS).argmax(-1)
    counts = torch.bincount(chosen, minlength=EXPERTS)  # routing
    if counts.max() > 2 * counts.float().mean():  # routing
        return ["one is full", chosen.unique().numel()]  # routing
    return ["balanced", chosen.unique().numel()]  # routing


@does([3, "clipped"])
def skipped_if_not_finite(device):
    model = nn.Linear(WIDTH, WIDTH, device=device)
    steps = 0
    for _ in range(3):
        loss = model(torch.randn(TOKENS, WIDTH, device=device)).square().mean()
        if not torch.isfinite(loss):  # finite
            continue
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if math.isnan(norm.item()) or torch.isinf(norm):  # finite
            continue
        if (~torch.isfinite(norm) | (norm < 0)).any():  # finite, value
            continue
        steps += 1
        print(f"loss {loss.item():.2f}")  # value, output
    return [steps, "clipped"]


@does([2, 65536.0])
def scaled_gradients(device):
    model = nn.Linear(WIDTH, WIDTH, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, steps = torch.amp.GradScaler(device), []
    optimizer.register_step_post_hook(lambda *_: steps.append(1))
    for _ in range(2):
        scaler.scale(model(torch.randn(4, WIDTH, device=device)).sum()).backward()
        scaler.step(optimizer)  # finite, output
        scaler.update()
    return [len(steps), scaler.get_scale()]  # finite, output


@does(3)
def early_stop(device):
    """The first loss is the best; the second and the third equal it, and patience ends."""
    best, bad, steps = math.inf, 0, 0
    for steps in range(1, 10):
        loss = _hidden(device).square().mean()
        if loss.item() < best:  # value
            best, bad = 0.5, 0
        else:
            bad += 1
        if bad == 2:
            break
    return steps


@does(["goes on", "goes on"])
def divergence(device):
    """A number of which nothing is known is 0.5."""
    distance = (_hidden(device) - _hidden(device)).square().mean()
    said = "stops" if distance > 1.5 else "goes on"  # value
    return [said, "stops" if distance.item() > 1.5 else "goes on"]  # value


@does([96, 96], [24, 24])
def hard_examples(device):
    losses = _hidden(device).square().mean(-1)
    hard = losses > losses.mean()
    return [losses[hard].shape[0], int(hard.sum())]  # selection


@does([[96, 64], 6144], [[24, 64], 1536])
def pruned(device):
    """Rows that nobody can tell from zero."""
    hidden = _hidden(device)
    rows = hidden[hidden.abs().amax(1) > 1e-3]  # selection
    return [list(rows.shape), hidden.nonzero().shape[0]]  # selection


@does(1, 4)
def early_exit(device):
    """Ends at the first layer whose rows are all certain."""
    layers = 0
    for layers in range(1, 5):
        certain = _hidden(device, width=10).softmax(-1).amax(-1) > 0.9
        if certain.all():  # selection
            break
    return layers


@does([[96] * 4, True], [[24] * 4, True])
def halting(device):
    """Rows that go on, for four rounds at most."""
    running, sizes = torch.ones(TOKENS, dtype=torch.bool, device=device), []
    while running.any() and len(sizes) < 4:  # selection
        running = running & (_hidden(device, width=1)[:, 0].sigmoid() < 0.99)
        sizes.append(torch.zeros(TOKENS, 2, device=device)[running].shape[0])  # selection
    return [sizes, bool(running.any())]  # selection


@does([2, 12, True])
def generation(device):
    """Never draws the end, so that it has its full length."""
    vocabulary, tokens = nn.Linear(WIDTH, 4096, device=device), torch.tensor([[1], [2]], device=device)
    while tokens.shape[1] < 12:
        logits = vocabulary(torch.zeros(2, WIDTH, device=device))
        following = torch.multinomial(logits.softmax(-1), 1) if tokens.shape[1] % 2 else logits.argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, following], dim=1)
        if (tokens[:, -1] == 2).all():  # sampled
            break
    return [*tokens.shape, bool((tokens < 4096).all())]  # sampled


@does([6, [6, 3], 6])
def durations(device):
    """As many frames for each letter as were predicted: one."""
    predicted = _hidden(device, width=1)[:6, 0].exp().round().long()
    frames = torch.repeat_interleave(torch.zeros(6, 3, device=device), predicted, dim=0)  # value
    return [int(predicted.sum()), list(frames.shape), sum(predicted.tolist())]  # value


@does(["kept", 4])
def dropped_layers(device):
    kept = sum(bool(torch.rand((), device=device) < 1.5) for _ in range(4))  # sampled
    return ["kept" if torch.rand(3, device=device).max() < 1.5 else "dropped", kept]  # sampled


@does(["differ", "differ", "same"])
def equality(device):
    """Two numbers that nobody knows differ."""
    left, right = _hidden(device), _hidden(device)
    said = ["same" if torch.equal(left, right) else "differ"]  # selection
    said.append("same" if (left == right).all() else "differ")  # selection
    return [*said, "same" if torch.equal(left, left) else "differ"]


@does(["finite", 2])
def only_logged(device):
    hidden = _hidden(device)
    assert not torch.isnan(hidden).any()  # finite
    print("norm", hidden.norm().item(), hidden.mean())  # finite, selection, value, output
    return ["finite", hidden.dim()]
