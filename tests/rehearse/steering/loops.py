"""Loops and branches that known numbers decide."""
import torch
from torch.utils.checkpoint import checkpoint

from draws import draws


def finite_loss(device):
    loss = torch.tensor(2.0, device=device) * 3
    return ["step" if torch.isfinite(loss) else "skipped", not torch.isnan(loss).any(), round(loss.item(), 3)]


def losses_that_are_not_finite(device):
    """Steps with an inf or a nan are skipped, and counted."""
    skipped = torch.zeros((), dtype=torch.int32, device=device)
    steps = []
    for step, value in enumerate([1.0, float("inf"), 2.0, float("nan"), 3.0]):
        loss = torch.tensor([value, 0.5], device=device).sum()
        if not torch.isfinite(loss).all() or loss != loss:
            skipped += 1
            continue
        steps.append([step, loss.item()])
    return [steps, int(skipped), torch.tensor([float("nan"), 1.0], device=device).nan_to_num(7.0).sum().item()]


def early_stop(device):
    best, bad, step = float("inf"), 0, 0
    for step, value in enumerate([5.0, 4.0, 4.5, 4.25, 4.75, 3.0]):
        loss = torch.tensor(value, device=device) / 2
        bad = 0 if loss < best else bad + 1
        best = min(best, loss.item())
        if bad == 3:
            break
    return [step, best]


def grad_scaler(device):
    """The scale is halved when a gradient is infinite."""
    scale, found = torch.tensor(1024.0, device=device), torch.tensor(1.0, device=device)
    scale = torch.where(found > 0, scale / 2, scale)
    return [scale.item(), bool(torch.equal(scale, torch.tensor(512.0, device=device))), torch.allclose(scale, scale)]


def scaler_that_skips(device):
    """PyTorch's scaler with a known gradient, of which the second is infinite."""
    weight = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer, steps = torch.optim.SGD([weight], lr=0.5), []
    scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)
    for value in (1.0, float("inf"), 2.0, 1.0, 1.0):
        weight.grad = scaler.scale(torch.full((4,), value, device=device))
        scaler.step(optimizer)
        scaler.update()
        steps.append([weight[0].item(), scaler.get_scale()])
    return steps


def clipping(device):
    weight = torch.nn.Parameter(torch.ones(3, device=device))
    norms = []
    for value in (2.0, float("nan"), 0.5):
        weight.grad = torch.full((3,), value, device=device)
        norm = torch.nn.utils.clip_grad_norm_([weight], 1.0)
        if torch.isnan(norm) or torch.isinf(norm):
            norms.append("skipped")
            continue
        norms.append([round(norm.item(), 4), bool(weight.grad.norm() < 1), round(weight.grad[0].item(), 4)])
    return norms


def descent(device):
    """Trains three numbers until their gradients are small."""
    weights, target = torch.nn.Parameter(torch.zeros(3, device=device)), torch.tensor([1.0, -2.0, 0.5], device=device)
    optimizer = torch.optim.SGD([weights], lr=0.25)
    for step in range(100):
        optimizer.zero_grad()
        loss = (weights - target).square().sum()
        loss.backward()
        if weights.grad.abs().max() < 1e-2:
            break
        optimizer.step()
    return [step, [round(value, 3) for value in weights.tolist()]]


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
    left, rounds = draws(10, 6, device), 0
    while (left > 0).any():
        left, rounds = torch.clamp(left - 1, min=0), rounds + 1
    return rounds


def curriculum_by_step(device):
    """The length of a sequence follows from a step that is counted on the card."""
    step, lengths = torch.zeros((), dtype=torch.long, device=device), []
    for _ in range(8):
        length = min(64, 8 * 2 ** int(step // 2))
        lengths.append(list(torch.zeros(2, 64, device=device)[:, :length].shape))
        step += 1
        if step % 3 == 0:
            lengths.append(step.item())
    return lengths


def curriculum_by_table(device):
    table = torch.linspace(8, 64, 8, device=device).long()
    steps = torch.arange(0, 40, 7, device=device)
    place = torch.clamp(steps // 5, max=7)
    return [table[place].tolist(), [torch.zeros(n, device=device).numel() for n in table[place]], (table > 30).nonzero()[0].item()]


def counters_as_indices(device):
    """Tensors where Python wants whole numbers: in ranges, slices, lists, sizes and sums."""
    three, sizes = torch.tensor(3, device=device), draws(5, 6, device)
    rows = [n for n in range(three)]
    table = ["a", "b", "c", "d"]
    return [rows, table[three], list(torch.zeros(8, 2, device=device)[three:].shape), sum(sizes).item(), max(sizes).item(), sorted(sizes.tolist()),
            torch.zeros(three, device=device).shape[0], int(three) in sizes, 5 in sizes, [2] * three, hex(three)]


def recomputed(device):
    """A checkpointed block that selects rows selects the same ones when it is recomputed."""
    seen, weight = [], torch.ones(8, 4, device=device, requires_grad=True)

    def block(states):
        rows = states[draws(8, 3, states.device) > 0]
        seen.append(list(rows.shape))
        return rows.sum()

    checkpoint(block, weight, use_reentrant=False).backward()
    return [seen, weight.grad.sum(1).count_nonzero().item()]


def statistics(device):
    values = draws(30, 100, device)
    return [values.max().item(), values.min().item(), values.argmax().item(), values.float().mean().item(), values.median().item(),
            values.sort().values[:4].tolist(), values.cummax(0).values[-1].item(), values.kthvalue(3).values.item()]


def batched_counts(device):
    """vmap over masks, whose sizes then steer."""
    masks = draws(24, 2, device).view(4, 6).bool()
    counts = torch.vmap(lambda mask: mask.sum())(masks)
    return [counts.tolist(), [list(part.shape) for part in torch.zeros(int(counts.sum()), 2, device=device).split(counts.tolist())]]


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
