"""Sequences of different lengths: packed, padded, split and put into buckets."""
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from draws import draws


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


def slices_by_offsets(device):
    """Attention of variable lengths, as a fallback computes it: a slice for each pair of offsets."""
    offsets = F.pad(torch.tensor([3, 7, 1, 5], dtype=torch.int32, device=device).cumsum(0), (1, 0)).to(torch.int32)
    states, parts = torch.zeros(16, 2, 4, device=device), []
    for begin, end in zip(offsets[:-1], offsets[1:]):
        part = states[begin:end].transpose(0, 1)
        parts.append(list((part @ part.transpose(1, 2)).shape))
    return [parts, offsets.diff().max().item()]


def offsets_of_positions(device):
    """As attention kernels are told of packed rows that came with positions alone."""
    positions = torch.cat([torch.arange(n) for n in (4, 7, 2, 3)]).to(device)[None]
    flat = positions.flatten()
    order = torch.arange(flat.size(0), device=device, dtype=torch.int32)
    offsets = torch.cat((order[flat == 0], torch.tensor(flat.size(), device=device, dtype=torch.int32)))
    return [offsets.tolist(), offsets.diff().max().item(), str(offsets.dtype)]


def documents_of_tokens(device):
    ids = torch.tensor([5, 6, 2, 7, 2, 8, 9, 9, 2, 4], device=device)
    documents = F.pad((ids == 2).cumsum(0)[:-1], (1, 0))
    same = documents[:, None] == documents[None, :]
    allowed = same & torch.ones(10, 10, dtype=torch.bool, device=device).tril()
    return [documents.tolist(), allowed.sum(1).tolist(), documents.unique(return_counts=True)[1].tolist()]


def ragged_split(device):
    sizes = torch.tensor([3, 0, 4, 1], device=device)
    return [part.shape[0] for part in torch.split(torch.zeros(8, 2, device=device), sizes.tolist())]


def repeated_rows(device):
    rows = torch.repeat_interleave(torch.zeros(4, 3, device=device), torch.tensor([2, 0, 3, 1], device=device), dim=0)
    return list(rows.shape)


def padding_to_the_longest(device):
    rows = [draws(n, 90, device, n) + 1 for n in (4, 9, 2)]
    padded = pad_sequence(rows, batch_first=True)
    lengths = (padded != 0).sum(1)
    longest = -(-int(lengths.max()) // 8) * 8
    padded = F.pad(padded, (0, longest - padded.shape[1]))
    left = padded.flip(1)
    return [list(padded.shape), lengths.tolist(), (left != 0).long().argmax(1).tolist()]


def recurrent_packing(device):
    lengths = torch.tensor([2, 5, 3], device=device)
    packed = pack_padded_sequence(torch.zeros(3, 5, 4, device=device), lengths.cpu(), batch_first=True, enforce_sorted=False)
    again, sizes = pad_packed_sequence(packed, batch_first=True)
    return [list(packed.data.shape), packed.batch_sizes.tolist(), packed.sorted_indices.tolist(), list(again.shape), sizes.tolist()]


def columns_that_are_all_padding(device):
    mask = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], device=device)
    columns = mask.any(0).nonzero().flatten()
    first, last = columns.min(), columns.max()
    return [list(torch.zeros(2, 5, 3, device=device)[:, first:last + 1].shape), columns.tolist()]


def buckets(device):
    edges = torch.tensor([0, 4, 8, 16], device=device)
    found = torch.bucketize(draws(20, 16, device), edges)
    return [found.tolist(), torch.searchsorted(edges, torch.tensor([3, 9], device=device)).tolist()]


def batches_by_bucket(device):
    lengths = draws(40, 200, device) + 1
    bucket = torch.bucketize(lengths, torch.tensor([32, 64, 128], device=device))
    order = torch.argsort(bucket, stable=True)
    kinds, counts = torch.unique_consecutive(bucket[order], return_counts=True)
    sizes = []
    for kind, rows in zip(kinds, order.split(counts.tolist())):
        sizes += [[int(kind), len(rows), int(lengths[rows].max())]]
    return sizes


def schedule_of_lengths(device):
    """Micro-batches filled up to a number of tokens."""
    lengths, batches, current = draws(20, 50, device) + 1, [], 0
    for length in lengths.sort(descending=True).values:
        if current + length > 64:
            batches.append(int(current))
            current = 0
        current += length
    return [*batches, int(current)]


def rows_of_packed_tokens(device):
    """Which sequence each token is of, by its offset; and the share of each of two ranks."""
    lengths = draws(6, 9, device) + 1
    ends = lengths.cumsum(0)
    tokens = torch.arange(int(ends[-1]), device=device)
    sequence = torch.searchsorted(ends, tokens, right=True)
    inside = tokens - F.pad(ends, (1, 0))[sequence]
    halves = [int((sequence % 2 == rank).sum()) for rank in range(2)]
    return [sequence.tolist(), inside.tolist(), halves]


def loss_by_chunks(device):
    """Chunks without a label are skipped; the others are divided by the number of labels in all micro-batches."""
    labels = torch.full((3, 8), -100, device=device)
    labels[0, 5:] = 3
    labels[2, :2] = torch.tensor([7, 1], device=device)
    items = torch.stack([row.ne(-100).sum() for row in labels]).sum().item()
    chunks = []
    for chunk in labels.flatten().chunk(6):
        if not (chunk != -100).any():
            continue
        kept = chunk[chunk != -100]
        chunks.append([list(torch.zeros(4, 11, device=device)[chunk != -100].shape), kept.max().item()])
    return [items, chunks]


def labels_not_ignored(device):
    labels = torch.tensor([[-100, -100, 5, 6], [-100, 7, 8, 9]], device=device)
    keep = labels[:, 1:].flatten() != -100
    logits = torch.zeros(2, 3, 11, device=device).view(-1, 11)[keep]
    return [logits.shape[0], int((labels != -100).sum())]


def nested_rows(device):
    rows = torch.nested.nested_tensor([torch.zeros(n, 3, device=device) for n in (2, 5, 1)], layout=torch.jagged)
    return [[list(row.shape) for row in rows.unbind()], rows.offsets().tolist(), list(rows.to_padded_tensor(0.0).shape)]


def sound_features(device):
    """Lengths after two convolutions of stride 2, and the frames that stay."""
    lengths = torch.tensor([100, 37, 64], device=device)
    lengths = torch.div(lengths - 1, 2, rounding_mode="floor") + 1
    lengths = (lengths - 2) // 2 + 1
    frames = torch.arange(lengths.max(), device=device).expand(3, -1) < lengths.unsqueeze(1)
    return [lengths.tolist(), list(torch.zeros(3, int(lengths.max()), 4, device=device)[frames].shape)]


def grid_of_images(device):
    """As a vision tower computes its positions."""
    grids, total = torch.tensor([[1, 4, 6], [2, 2, 2]], device=device), []
    for t, h, w in grids.tolist():
        ids = torch.arange(h, device=device).unsqueeze(1).expand(-1, w).flatten().repeat(t)
        total += [ids.numel(), int(ids.max())]
    lengths = torch.repeat_interleave(grids[:, 1] * grids[:, 2], grids[:, 0]).cumsum(0)
    return total + lengths.tolist()


def images_among_text(device):
    """Where images begin in the tokens, how many there are, and their features by the product of their grids."""
    ids = torch.tensor([1, 8, 9, 9, 9, 9, 2, 8, 9, 9, 3], device=device)
    starts = torch.argwhere(ids == 8).squeeze(1)
    images = int((ids[starts + 1] == 9).sum())
    grids = torch.tensor([[1, 4, 4], [1, 2, 4]], device=device)
    sizes = (grids.prod(-1) // 4).tolist()
    features = torch.zeros(sum(sizes), 5, device=device).split(sizes)
    return [starts.tolist(), images, [list(each.shape) for each in features], ids.tolist().index(9, 6)]


def image_tokens(device):
    ids = torch.tensor([[1, 9, 9, 9, 2, 3], [9, 4, 5, 9, 9, 6]], device=device)
    mask = (ids == 9).unsqueeze(-1).expand(-1, -1, 4)
    filled = torch.zeros(2, 6, 4, device=device).masked_scatter(mask, torch.ones(6, 4, device=device))
    return [int(mask.sum()), *filled.shape, *(ids != 9).sum(1).tolist()]
