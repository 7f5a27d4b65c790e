"""Small programs whose sizes and branches follow from values, each run on CPU tensors and on the card's. Every one returns what it did:
sizes, counts, numbers that it read. A line for each that differs, and one with their number.

Usage: steering.py    (inputs are uploaded or made of constants, so that all values are known)
"""
import random

import torch
import torch.nn.functional as F

TOKENS, EXPERTS = 64, 8


def numbers(count, below, device, seed=1):
    draw = random.Random(seed)
    return torch.tensor([draw.randrange(below) for _ in range(count)], device=device)


def routing_by_experts(device):
    """As transformers' eager experts do it."""
    chosen = numbers(TOKENS * 2, EXPERTS, device).view(TOKENS, 2)
    mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    hidden, sizes = torch.zeros(TOKENS, 16, device=device), []
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        _, tokens = torch.where(mask[expert].squeeze(0))
        sizes.append(hidden[None, tokens].reshape(-1, 16).shape[0])
    return sizes


def routing_by_sort(device):
    chosen = numbers(TOKENS, EXPERTS, device)
    counts = torch.bincount(chosen, minlength=EXPERTS)
    order = chosen.argsort(stable=True)
    return [part.shape[0] for part in torch.zeros(TOKENS, 4, device=device)[order].split(counts.tolist())] + order[:5].tolist()


def routing_by_histogram(device):
    counts = torch.histc(numbers(TOKENS, EXPERTS, device).float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    return counts.int().tolist() + counts.cumsum(0).int().tolist()


def top_of_known_scores(device):
    scores = numbers(TOKENS * EXPERTS, 10_000, device).view(TOKENS, EXPERTS).float()
    _, chosen = torch.topk(scores.softmax(-1), 2)
    return chosen.flatten().tolist()


def capacity_drop(device):
    chosen = F.one_hot(numbers(TOKENS, EXPERTS, device), EXPERTS)
    position = chosen.cumsum(0) * chosen
    kept = (position > 0) & (position <= 5)
    return [int(kept.sum()), *kept.sum(0).tolist(), torch.zeros(TOKENS, EXPERTS, device=device)[kept].shape[0]]


def unpadding(device):
    lengths = torch.tensor([5, 16, 9, 1], device=device)
    mask = torch.arange(16, device=device)[None, :] < lengths[:, None]
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    seqlens = mask.sum(-1, dtype=torch.int32)
    cumulated = F.pad(torch.cumsum(seqlens, 0, dtype=torch.int32), (1, 0))
    states = torch.zeros(64, 8, device=device)[indices]
    return [states.shape[0], int(seqlens.max()), *cumulated.tolist()]


def packed_sequences(device):
    positions = torch.cat([torch.arange(n, device=device) for n in (4, 7, 2)])
    starts = torch.nonzero(torch.diff(positions, prepend=positions[:1] - 1) != 1).flatten()
    is_packed = not bool((torch.diff(positions) >= 0).all())
    return [is_packed, *starts.tolist(), bool((positions == 0).all())]


def ragged_split(device):
    sizes = torch.tensor([3, 0, 4, 1], device=device)
    return [part.shape[0] for part in torch.split(torch.zeros(8, 2, device=device), sizes.tolist())]


def repeated_rows(device):
    rows = torch.repeat_interleave(torch.zeros(4, 3, device=device), torch.tensor([2, 0, 3, 1], device=device), dim=0)
    return list(rows.shape)


def grid_of_images(device):
    """As a vision tower computes its positions."""
    grids, total = torch.tensor([[1, 4, 6], [2, 2, 2]], device=device), []
    for t, h, w in grids.tolist():
        ids = torch.arange(h, device=device).unsqueeze(1).expand(-1, w).flatten().repeat(t)
        total += [ids.numel(), int(ids.max())]
    lengths = torch.repeat_interleave(grids[:, 1] * grids[:, 2], grids[:, 0]).cumsum(0)
    return total + lengths.tolist()


def image_tokens(device):
    ids = torch.tensor([[1, 9, 9, 9, 2, 3], [9, 4, 5, 9, 9, 6]], device=device)
    mask = (ids == 9).unsqueeze(-1).expand(-1, -1, 4)
    filled = torch.zeros(2, 6, 4, device=device).masked_scatter(mask, torch.ones(6, 4, device=device))
    return [int(mask.sum()), *filled.shape, *(ids != 9).sum(1).tolist()]


def labels_not_ignored(device):
    labels = torch.tensor([[-100, -100, 5, 6], [-100, 7, 8, 9]], device=device)
    keep = labels[:, 1:].flatten() != -100
    logits = torch.zeros(2, 3, 11, device=device).view(-1, 11)[keep]
    return [logits.shape[0], int((labels != -100).sum())]


def finite_loss(device):
    loss = torch.tensor(2.0, device=device) * 3
    return ["step" if torch.isfinite(loss) else "skipped", not torch.isnan(loss).any(), round(loss.item(), 3)]


def early_stop(device):
    best, bad, step = float("inf"), 0, 0
    for step, value in enumerate([5.0, 4.0, 4.5, 4.25, 4.75, 3.0]):
        loss = torch.tensor(value, device=device) / 2
        bad = 0 if loss < best else bad + 1
        best = min(best, loss.item())
        if bad == 3:
            break
    return [step, best]


def generation(device):
    """Greedy decoding that ends when each row has drawn the end."""
    tokens = torch.tensor([[3], [5]], device=device)
    unfinished = torch.ones(2, dtype=torch.long, device=device)
    while tokens.shape[1] < 20:
        following = (tokens[:, -1] * 3 + 1) % 11
        tokens = torch.cat([tokens, (following * unfinished + 11 * (1 - unfinished))[:, None]], dim=-1)
        unfinished = unfinished * (following != 5).long()
        if unfinished.max() == 0:
            break
    return [list(tokens.shape), tokens.tolist()]


def beam_search(device):
    beams = torch.zeros(3, 1, dtype=torch.long, device=device)
    scores = torch.tensor([0.0, -1.0, -2.0], device=device)
    for step in range(4):
        table = -((torch.arange(15, device=device).view(3, 5) * (step + 3)) % 7).float()
        scores, flat = torch.topk((scores[:, None] + table).flatten(), 3)
        parents = torch.div(flat, 5, rounding_mode="floor")
        beams = torch.cat([beams[parents], (flat % 5)[:, None]], dim=1)
    finished = (beams == 0).any(1)
    return [beams.tolist(), finished.tolist(), beams[~finished].shape[0]]


def unique_tokens(device):
    values, inverse, counts = torch.unique(numbers(TOKENS, 12, device), return_inverse=True, return_counts=True)
    runs, lengths = torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 2, 1], device=device), return_counts=True)
    return [values.tolist(), inverse[:9].tolist(), counts.tolist(), runs.tolist(), lengths.tolist()]


def unique_rows(device):
    return torch.unique(numbers(40, 3, device).view(20, 2), dim=0).tolist()


def boolean_assignment(device):
    ids = numbers(32, 9, device)
    ids[ids > 5] = -1
    ids[torch.tensor([0, 3], device=device)] = torch.tensor([7, 8], device=device)
    ids[10:12] = 4
    return ids.tolist()


def masked_selection(device):
    ids = numbers(32, 9, device)
    return [ids.masked_select(ids % 2 == 0).shape[0], ids[ids > 3].sum().item(), ids.masked_fill(ids > 3, 0).sum().item()]


def scattered(device):
    target = torch.zeros(4, 6, dtype=torch.long, device=device)
    target.scatter_(1, numbers(8, 6, device).view(4, 2), 1)
    counts = torch.zeros(6, dtype=torch.long, device=device).scatter_add_(0, numbers(20, 6, device), torch.ones(20, dtype=torch.long, device=device))
    return [target.sum(1).tolist(), counts.tolist(), target.gather(1, numbers(4, 6, device)[:, None]).flatten().tolist()]


def buckets(device):
    edges = torch.tensor([0, 4, 8, 16], device=device)
    found = torch.bucketize(numbers(20, 16, device), edges)
    return [found.tolist(), torch.searchsorted(edges, torch.tensor([3, 9], device=device)).tolist()]


def lookup(device):
    table = torch.arange(20, device=device).flip(0)
    return [table[numbers(6, 20, device)].tolist(), F.embedding(numbers(4, 20, device), table.view(-1, 1)).flatten().tolist()]


def stored_strided(device):
    grid = torch.arange(24, device=device).view(2, 3, 4)
    return [grid.permute(2, 0, 1).reshape(-1).tolist(), grid[:, 1].tolist(), grid[..., ::2].contiguous().sum().item(), torch.roll(grid, 1, 0)[0, 0].tolist()]


def window_mask(device):
    rows, columns = torch.arange(16, device=device)[:, None], torch.arange(16, device=device)[None, :]
    mask = (columns <= rows) & (columns > rows - 4)
    return [int(mask.sum()), mask.any(1).all().item(), torch.tril(torch.ones(6, 6, dtype=torch.bool, device=device)).sum().item()]


def statistics(device):
    values = numbers(30, 100, device)
    return [values.max().item(), values.min().item(), values.argmax().item(), values.float().mean().item(), values.median().item(),
            values.sort().values[:4].tolist(), values.cummax(0).values[-1].item(), values.kthvalue(3).values.item()]


def schedule_of_lengths(device):
    """Micro-batches filled up to a number of tokens."""
    lengths, batches, current = numbers(20, 50, device) + 1, [], 0
    for length in lengths.sort(descending=True).values:
        if current + length > 64:
            batches.append(int(current))
            current = 0
        current += length
    return [*batches, int(current)]


def grad_scaler(device):
    """The scale is halved when a gradient is infinite."""
    scale, found = torch.tensor(1024.0, device=device), torch.tensor(1.0, device=device)
    scale = torch.where(found > 0, scale / 2, scale)
    return [scale.item(), bool(torch.equal(scale, torch.tensor(512.0, device=device))), torch.allclose(scale, scale)]


def small_solver(device):
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]], device=device)
    state = torch.ones(2, device=device)
    for steps in range(50):
        following = matrix @ state
        following = following / following.abs().max()
        if (following - state).abs().max() < 1e-4:
            break
        state = following
    return [steps, torch._foreach_add([state, state], 1.0)[1].shape[0]]


def while_any(device):
    left, rounds = numbers(10, 6, device), 0
    while (left > 0).any():
        left, rounds = torch.clamp(left - 1, min=0), rounds + 1
    return rounds


def untouched_by_others(device):
    """What is known of a tensor outlives launches whose parameters hold leftovers of earlier ones."""
    kept = [torch.tensor([n, n + 1], device=device) for n in range(40)]
    parts = [torch.zeros(n % 5 + 1, device=device) for n in range(150)]
    torch.cat(parts), torch.cat(kept), torch.stack(parts[:1]), torch.cat(parts[:2])
    torch._foreach_mul_(parts, 2.0), torch._foreach_mul_(parts[:3], 2.0)
    grid = torch.zeros(64, 64, 64, device=device)
    grid[kept[1], kept[2], kept[3]], grid[kept[0]], grid.index_put_((kept[5],), parts[0]), torch.cat(parts[:3])
    large = torch.zeros(1 << 16, device=device)
    large.mul_(2).add_(large), torch.where(large > 0, large, parts[0])
    return [tensor.tolist() for tensor in kept]


PROGRAMS = [each for name, each in list(globals().items())
            if callable(each) and getattr(each, "__module__", "") == "__main__" and name != "numbers"]

if __name__ == "__main__":
    different = 0
    for program in PROGRAMS:
        try:
            on_host = program("cpu")
            on_card = program("cuda")
        except Exception as error:
            on_host, on_card = "no error", f"{type(error).__name__}: {error}"
        if on_host != on_card:
            different += 1
            print(f"{program.__name__}: {on_host} on the CPU, {on_card} on the card")
    print(f"{len(PROGRAMS)} programs, {different} different")
