"""Tokens sent to experts that the host chose, or that known scores choose."""
import torch
import torch.nn.functional as F

from draws import draws

TOKENS, EXPERTS = 64, 8


def routing_by_experts(device):
    """As transformers' eager experts do it."""
    chosen = draws(TOKENS * 2, EXPERTS, device).view(TOKENS, 2)
    mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    hidden, sizes = torch.zeros(TOKENS, 16, device=device), []
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        _, tokens = torch.where(mask[expert].squeeze(0))
        sizes.append(hidden[None, tokens].reshape(-1, 16).shape[0])
    return sizes


def routing_by_sort(device):
    chosen = draws(TOKENS, EXPERTS, device)
    counts = torch.bincount(chosen, minlength=EXPERTS)
    order = chosen.argsort(stable=True)
    return [part.shape[0] for part in torch.zeros(TOKENS, 4, device=device)[order].split(counts.tolist())] + order[:5].tolist()


def routing_by_histogram(device):
    counts = torch.histc(draws(TOKENS, EXPERTS, device).float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    return counts.int().tolist() + counts.cumsum(0).int().tolist()


def routing_by_scores_in_bfloat16(device):
    scores = draws(TOKENS * EXPERTS, 97, device).view(TOKENS, EXPERTS).to(torch.bfloat16)
    weights, chosen = torch.topk(F.softmax(scores, dim=1, dtype=torch.float), 2, dim=-1)
    weights /= weights.sum(dim=-1, keepdim=True)
    counts = chosen.flatten().bincount(minlength=EXPERTS)
    return [counts.tolist(), int((weights[:, 0] > 0.9).sum()), chosen[:5].tolist()]


def top_of_known_scores(device):
    scores = draws(TOKENS * EXPERTS, 10_000, device).view(TOKENS, EXPERTS).float()
    _, chosen = torch.topk(scores.softmax(-1), 2)
    return chosen.flatten().tolist()


def capacity_drop(device):
    chosen = F.one_hot(draws(TOKENS, EXPERTS, device), EXPERTS)
    position = chosen.cumsum(0) * chosen
    kept = (position > 0) & (position <= 5)
    return [int(kept.sum()), *kept.sum(0).tolist(), torch.zeros(TOKENS, EXPERTS, device=device)[kept].shape[0]]


def capacity_by_factor(device):
    """As GShard does: the capacity follows from a factor, unless drops are not allowed; then from the fullest expert."""
    chosen = F.one_hot(draws(TOKENS, EXPERTS, device), EXPERTS)
    capacity = torch.ceil(torch.tensor(TOKENS / EXPERTS, device=device) * 1.25).to(torch.int64)
    fullest = torch.max(chosen.sum(0))
    locations = torch.cumsum(chosen, dim=0) - 1
    chosen = chosen * torch.lt(locations, capacity)
    place = F.one_hot(torch.sum(locations * chosen, dim=1), num_classes=int(capacity))
    return [int(capacity), int(fullest), list(place.shape), chosen.sum(0).tolist()]


def experts_choose(device):
    """Each expert takes the tokens with the largest scores; some tokens are left over."""
    scores = draws(32 * 4, 1000, device).view(32, 4).float() / 7
    _, tokens = scores.t().topk(6, dim=-1)
    times = torch.zeros(32, dtype=torch.long, device=device).index_add_(0, tokens.flatten(), torch.ones(24, dtype=torch.long, device=device))
    return [tokens.tolist(), (times == 0).sum().item(), (times > 1).nonzero().flatten().tolist()]


def splits_between_ranks(device):
    """Rows that this rank sends to each of four others, and what it gets of each for its two experts."""
    counts = torch.bincount(draws(TOKENS * 2, EXPERTS, device), minlength=EXPERTS)
    sends = counts.view(4, -1).sum(dim=1).to("cpu", non_blocking=False).tolist()
    got = counts.view(4, 2).t().reshape(-1)
    order = torch.arange(EXPERTS, device=device).view(4, 2).t().reshape(-1)
    rows = torch.zeros(TOKENS * 2, 3, device=device).split(counts.tolist())
    return [sends, got.tolist(), [rows[n].shape[0] for n in order.tolist()]]


def padded_groups(device):
    """Each expert's group is padded to a multiple of 8, as grouped products want it; experts without rows get one group."""
    counts = torch.bincount(draws(TOKENS, 12, device) % 7, minlength=EXPERTS)
    padded = torch.clamp_min((counts + 7) // 8, 1) * 8
    offsets = torch.cumsum(padded, 0).to(torch.int32)
    starts = offsets - padded
    indices = torch.full((int(offsets[-1]),), -1, dtype=torch.int32, device=device)
    begin = torch.cumsum(counts, 0) - counts
    for expert in range(EXPERTS):
        first, rows = int(starts[expert]), int(counts[expert])
        indices[first:first + rows] = torch.arange(int(begin[expert]), int(begin[expert]) + rows, device=device, dtype=torch.int32)
    return [offsets.tolist(), (indices == -1).sum().item(), indices[indices >= 0].sum().item()]


def permuted_by_map(device):
    """A map of tokens and experts, as Megatron's dispatcher has it: selected by a mask, and sorted back."""
    chosen = draws(TOKENS * 2, EXPERTS, device).view(TOKENS, 2)
    routing = torch.zeros(TOKENS, EXPERTS, device=device).int().scatter(1, chosen, 1).bool()
    per_expert = routing.sum(dim=0).long()
    tokens = torch.arange(TOKENS, device=device).unsqueeze(0).expand(EXPERTS, -1)
    sorted_tokens = tokens.masked_select(routing.T.contiguous())
    back = torch.zeros(TOKENS, dtype=torch.long, device=device).scatter_add_(0, sorted_tokens, torch.ones_like(sorted_tokens))
    return [per_expert.tolist(), sorted_tokens.shape[0], back.tolist(), bool(torch.equal(back, routing.sum(1)))]


def sorted_and_back(device):
    chosen = draws(TOKENS, EXPERTS, device)
    order = torch.argsort(chosen)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(TOKENS, device=device)
    values, runs = chosen[order].unique_consecutive(return_counts=True)
    return [bool((chosen[order][inverse] == chosen).all()), values.tolist(), runs.tolist()]


def bias_for_balance(device):
    """A bias for each expert is moved towards balance until the counts differ little."""
    scores = (draws(TOKENS * EXPERTS, 50, device).view(TOKENS, EXPERTS) + torch.arange(EXPERTS, device=device) * 3).float()
    bias, rounds = torch.zeros(EXPERTS, device=device), 0
    for rounds in range(200):
        counts = torch.bincount((scores + bias).argmax(1), minlength=EXPERTS)
        if counts.max() - counts.min() <= 8:
            break
        bias += torch.sign(counts.float().mean() - counts)
    return [rounds, counts.tolist()]
