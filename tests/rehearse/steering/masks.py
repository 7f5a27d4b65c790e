"""Masks and indices: selected, assigned, scattered and counted."""
import torch
import torch.nn.functional as F

from draws import draws


def unique_tokens(device):
    values, inverse, counts = torch.unique(draws(64, 12, device), return_inverse=True, return_counts=True)
    runs, lengths = torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 2, 1], device=device), return_counts=True)
    return [values.tolist(), inverse[:9].tolist(), counts.tolist(), runs.tolist(), lengths.tolist()]


def unique_rows(device):
    return torch.unique(draws(40, 3, device).view(20, 2), dim=0).tolist()


def rows_met_before(device):
    rows = draws(60, 3, device).view(20, 3)
    unique, inverse, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    first = torch.full((unique.shape[0],), 99, device=device).scatter_reduce_(0, inverse, torch.arange(20, device=device), "amin")
    runs = torch.unique_consecutive(rows[:, 0], return_inverse=True)[1]
    return [unique.tolist(), inverse.tolist(), counts.tolist(), first.tolist(), runs.tolist()]


def unique_booleans(device):
    mixed, equal = draws(9, 2, device).bool(), torch.ones(7, dtype=torch.bool, device=device)
    found = [each.unique().tolist() for each in (mixed, equal, ~equal)]
    values, inverse, counts = (~mixed).unique(return_inverse=True, return_counts=True)
    return [found, values.tolist(), inverse.tolist(), counts.tolist()]


def boolean_assignment(device):
    ids = draws(32, 9, device)
    ids[ids > 5] = -1
    ids[torch.tensor([0, 3], device=device)] = torch.tensor([7, 8], device=device)
    ids[10:12] = 4
    return ids.tolist()


def masked_selection(device):
    ids = draws(32, 9, device)
    return [ids.masked_select(ids % 2 == 0).shape[0], ids[ids > 3].sum().item(), ids.masked_fill(ids > 3, 0).sum().item()]


def bytes_as_masks(device):
    """uint8 as a mask, counted, negated and packed into bits."""
    mask = draws(24, 2, device).to(torch.uint8)
    rows = torch.zeros(24, 3, device=device)[mask.bool()]
    bits = (mask.view(3, 8) << torch.arange(8, device=device, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
    again = (bits[:, None] >> torch.arange(8, device=device, dtype=torch.uint8)) & 1
    return [rows.shape[0], bits.tolist(), bool((again.flatten() == mask).all()), (1 - mask).sum().item(), torch.nonzero(mask).shape[0]]


def types_that_differ(device):
    small, large = draws(16, 200, device).to(torch.int32), draws(16, 200, device, seed=2)
    half, byte = large.to(torch.float16), large.to(torch.uint8)
    return [(small < large).sum().item(), (small == byte).any().item(), int((half > small).sum()), (large % 7 == byte % 7).all().item(),
            (small.short() - large.short()).clamp(-5, 5).tolist(), (large > 99.5).nonzero().flatten().tolist(), str((small + large).dtype)]


def scattered(device):
    target = torch.zeros(4, 6, dtype=torch.long, device=device)
    target.scatter_(1, draws(8, 6, device).view(4, 2), 1)
    counts = torch.zeros(6, dtype=torch.long, device=device).scatter_add_(0, draws(20, 6, device), torch.ones(20, dtype=torch.long, device=device))
    return [target.sum(1).tolist(), counts.tolist(), target.gather(1, draws(4, 6, device)[:, None]).flatten().tolist()]


def accumulated(device):
    where = draws(20, 5, device)
    put = torch.zeros(5, dtype=torch.long, device=device).index_put_((where,), torch.ones(20, dtype=torch.long, device=device), accumulate=True)
    added = torch.zeros(5, dtype=torch.long, device=device).index_add_(0, where, torch.arange(20, device=device))
    largest = torch.zeros(5, dtype=torch.long, device=device).scatter_reduce_(0, where, torch.arange(20, device=device), "amax", include_self=False)
    weighted = torch.bincount(where, weights=torch.arange(20, device=device, dtype=torch.float32))
    grid = torch.zeros(5, 5, dtype=torch.int32, device=device)
    grid[where, where.flip(0)] += 1
    return [put.tolist(), added.tolist(), largest.tolist(), weighted.tolist(), grid.nonzero().shape[0], torch.histc(where.float(), 5, 0, 4).tolist()]


def masks_in_place(device):
    mask = torch.ones(6, 6, dtype=torch.bool, device=device)
    mask.tril_()
    mask[:, 2] &= torch.tensor([1, 0, 1, 0, 1, 1], dtype=torch.bool, device=device)
    mask.logical_xor_(torch.eye(6, dtype=torch.bool, device=device))
    mask |= mask.T.clone()
    rows = torch.arange(6, device=device)
    rows.masked_fill_(mask[0], -7).add_(3)
    kept = torch.zeros(6, dtype=torch.long, device=device).masked_scatter_(mask[1], rows)
    return [mask.sum(1).tolist(), rows.tolist(), kept.tolist(), torch.zeros(6, 6, 2, device=device)[mask].shape[0]]


def window_mask(device):
    rows, columns = torch.arange(16, device=device)[:, None], torch.arange(16, device=device)[None, :]
    mask = (columns <= rows) & (columns > rows - 4)
    return [int(mask.sum()), mask.any(1).all().item(), torch.tril(torch.ones(6, 6, dtype=torch.bool, device=device)).sum().item()]


def blocks_of_a_mask(device):
    """Blocks that attention can leave out, and those that it need not mask."""
    at = torch.arange(64, device=device)
    mask = (at[:, None] >= at[None]) & (at[:, None] // 24 == at[None] // 24)
    counts = mask.view(4, 16, 4, 16).permute(0, 2, 1, 3).sum((-2, -1))
    partial, full = (counts > 0) & (counts < 256), counts == 256
    order = torch.argsort(partial.int(), dim=-1, descending=True, stable=True)
    return [partial.sum(-1).tolist(), full.sum().item(), order.tolist(), torch.where(~mask.any(1))[0].numel()]


def triangle_indices(device):
    rows, columns = torch.triu_indices(7, 7, 1, device=device)
    pairs = torch.combinations(torch.arange(4, device=device))
    return [rows.shape[0], columns.tolist(), pairs.tolist(), torch.cartesian_prod(torch.arange(2, device=device), torch.arange(3, device=device)).tolist()]


def lookup(device):
    table = torch.arange(20, device=device).flip(0)
    return [table[draws(6, 20, device)].tolist(), F.embedding(draws(4, 20, device), table.view(-1, 1)).flatten().tolist()]


def stored_strided(device):
    grid = torch.arange(24, device=device).view(2, 3, 4)
    return [grid.permute(2, 0, 1).reshape(-1).tolist(), grid[:, 1].tolist(), grid[..., ::2].contiguous().sum().item(), torch.roll(grid, 1, 0)[0, 0].tolist()]


def views_of_known(device):
    grid = torch.arange(30, device=device).view(5, 6)
    grid.t()[1:3].mul_(10)
    grid.diagonal().fill_(0)
    windows = grid.flatten().as_strided((4, 5), (6, 1), 2)
    halves = grid.chunk(2, dim=1)[1].unbind(0)
    rows = grid.expand(2, 5, 6).movedim(0, 1)[::2]
    grid.view(torch.int32)[0, 2:4] = torch.tensor([9, 0], dtype=torch.int32, device=device)
    return [grid.tolist(), windows.sum(1).tolist(), [int(row.argmax()) for row in halves], rows.amax((1, 2)).tolist(), (grid.mT == 0).nonzero().tolist()]


def kept_boxes(device):
    """Greedy suppression of boxes that overlap a better one."""
    boxes = torch.tensor([[0, 0, 9, 9], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 8, 9], [21, 19, 30, 29], [50, 0, 60, 9]], device=device).float()
    scores = torch.tensor([0.5, 0.9, 0.3, 0.8, 0.4, 0.1], device=device)
    order, kept = scores.argsort(descending=True), []
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while order.numel() > 0:
        best = order[0]
        kept.append(best.item())
        corner, end = torch.maximum(boxes[best, :2], boxes[order, :2]), torch.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = (end - corner).clamp(min=0).prod(1)
        order = order[shared / (area[best] + area[order] - shared) <= 0.5]
    return kept


def reached_nodes(device):
    """Nodes of a graph by distance, and its parts by labels that spread until none changes."""
    edges = torch.tensor([[0, 1, 2, 4, 5, 7], [1, 2, 3, 5, 6, 7]], device=device)
    links = torch.zeros(8, 8, dtype=torch.bool, device=device)
    links[edges[0], edges[1]] = True
    links |= links.clone().T
    front, seen, sizes = torch.tensor([0], device=device), torch.zeros(8, dtype=torch.bool, device=device), []
    while front.numel():
        seen[front] = True
        sizes.append(front.shape[0])
        front = (links[front].any(0) & ~seen).nonzero().flatten()
    labels = torch.arange(8, device=device)
    for rounds in range(9):
        spread = torch.minimum(labels, torch.where(links, labels, 99).amin(1))
        if torch.equal(spread, labels):
            break
        labels = spread
    return [sizes, rounds, labels.tolist(), labels.unique().shape[0]]


def sparse_entries(device):
    """Duplicate entries are joined, as an optimizer does with gradients of an embedding."""
    where = torch.stack([draws(12, 3, device), draws(12, 4, device, seed=2)])
    joined = torch.sparse_coo_tensor(where, torch.ones(12, device=device), (3, 4), check_invariants=False).coalesce()
    table = torch.nn.Embedding(50, 4, sparse=True, device=device)
    table(draws(20, 9, device)).sum().backward()
    gradient = table.weight.grad.coalesce()
    return [joined._nnz(), joined.indices().tolist(), list(gradient.values().shape), gradient.indices().tolist()]
