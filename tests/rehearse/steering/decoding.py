"""Generation with known scores: what is generated, for how long, and where it is kept."""
import torch

from draws import draws


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


def stopping_at_any_of(device):
    """Several end tokens, as a generation's stopping criteria ask for them; finished rows leave the batch."""
    ends = torch.tensor([4, 9], device=device)
    tokens, lengths = torch.tensor([[1], [6], [9]], device=device), []
    for _ in range(12):
        following = (tokens[:, -1] * 5 + 3) % 13
        tokens = torch.cat([tokens, following[:, None]], dim=1)
        done = torch.isin(tokens[:, -1], ends)
        lengths.append(tokens.shape[0])
        if torch.all(done):
            break
        tokens = tokens[~done]
    return [lengths, tokens.tolist()]


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


def beams_that_end(device):
    """Twice as many candidates as beams; those that end are kept apart, and all is over when no beam can be better than the worst of them."""
    running = torch.tensor([[0.0, -1.5]], device=device)
    tokens, finished, steps = torch.zeros(1, 2, 1, dtype=torch.long, device=device), [], 0
    for steps in range(10):
        table = -torch.tensor([[3.0, 1.0, 2.0, 0.5 + steps], [0.25, 2.0, 1.0, 1.5]], device=device)
        scores, flat = torch.topk((running[:, :, None] + table).view(1, -1), 4)
        parents, chosen = flat // 4, flat % 4
        ends = chosen == 3
        for place in ends[0].nonzero().flatten().tolist():
            finished.append((scores[0, place] / (steps + 2)).item())
        running = (scores + ends * -1e9).topk(2)[0]
        kept = (scores + ends * -1e9).topk(2)[1]
        rows = torch.take_along_dim(parents, kept, 1)
        tokens = torch.cat([tokens[0, rows[0]][None], torch.take_along_dim(chosen, kept, 1)[..., None]], dim=-1)
        if len(finished) >= 2 and running.max() / (steps + 2) < min(sorted(finished)[-2:]):
            break
    return [steps, [round(score, 4) for score in finished], tokens.tolist()]


def cache_positions(device):
    """A static cache: prefill, then a token at a time; the attended part grows with the position."""
    cache = torch.zeros(1, 2, 16, 4, device=device)
    position, seen = torch.arange(5, device=device), []
    for _ in range(4):
        cache.index_copy_(2, position, torch.ones(1, 2, position.shape[0], 4, device=device))
        end = int(position[-1]) + 1
        filled = cache[0, 0].any(dim=-1).sum()
        seen.append([list(cache[:, :, :end].shape), filled.item(), bool(filled == end)])
        position = position[-1:] + 1
    return seen


def sliding_cache(device):
    """Beyond the window, the oldest entries leave."""
    window, keys, lengths = 6, torch.zeros(0, dtype=torch.long, device=device), []
    for step in range(9):
        keys = torch.cat([keys, torch.full((1,), step, device=device)])
        oldest = keys.max() - window + 1
        keys = keys[keys >= oldest]
        lengths.append(keys.shape[0])
    return [lengths, keys.tolist()]


def drafts_accepted(device):
    """Speculative decoding: the agreeing beginning is kept, and the cache is cut behind it."""
    lengths, at = [], torch.tensor(4, device=device)
    for step in range(4):
        draft, target = draws(5, 3, device, step), draws(5, 3, device, step + 10)
        accepted = (draft == target).long().cumprod(-1).sum()
        at += accepted + 1
        lengths.append([accepted.item(), list(torch.zeros(2, 64, 4, device=device)[:, :at].shape)])
    return lengths


def nucleus(device):
    """How many tokens are left by a limit of their summed probability."""
    scores = (draws(24, 60, device).view(2, 12).float() / 8).softmax(-1)
    ordered, order = torch.sort(scores, descending=False)
    remove = ordered.cumsum(-1) <= 0.2
    remove[..., -1:] = 0
    removed = remove.scatter(1, order, remove)
    return [(~removed).sum(1).tolist(), scores.masked_fill(removed, 0).nonzero().shape[0]]


def repeated_pairs(device):
    """Tokens that would repeat a pair."""
    ids = torch.tensor([1, 2, 3, 1, 2, 4, 1], device=device)
    pairs = ids.unfold(0, 2, 1)
    banned = pairs[pairs[:, 0] == ids[-1]][:, 1].unique()
    return [banned.tolist(), list(pairs.shape), torch.zeros(6, device=device).index_fill_(0, banned, -1.0).tolist()]


def common_beginning(device):
    prompts = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 9, 5], [1, 2, 3, 4, 7]], device=device)
    differs = (prompts != prompts[:1]).any(0)
    length = differs.long().argmax() if differs.any() else prompts.shape[1]
    return [list(prompts[:, :length].shape), list(prompts[:, length:].shape)]


def pages_of_a_cache(device):
    """Blocks of 4 tokens: which slots tokens go to, and how many blocks each row needs."""
    lengths = torch.tensor([5, 9, 1], device=device)
    blocks = (lengths + 3) // 4
    table = torch.full((3, int(blocks.max())), -1, device=device)
    table[torch.arange(int(blocks.max()), device=device) < blocks[:, None]] = torch.arange(int(blocks.sum()), device=device).flip(0)
    rows = torch.repeat_interleave(torch.arange(3, device=device), lengths)
    inside = torch.cat([torch.arange(n, device=device) for n in lengths])
    slots = table[rows, inside // 4] * 4 + inside % 4
    return [table.tolist(), slots.tolist(), slots.unique().numel()]
