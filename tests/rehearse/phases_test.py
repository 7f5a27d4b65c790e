"""Which phases a training script is in, where it steps with a closure (as Lightning and LBFGS do), where it has several micro-batches
(as pipelines do), and where experts get their tokens by an index, are recomputed within backward, and have biases that an optimizer's hook moves (as
mixtures of experts do). On the CPU, without a rehearsal: only the order of the phases is looked at.
"""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "phantom", "python"))
from vramfit_rehearsal.phases import Phases  # noqa: E402


class Marks:
    """In the place of Peaks: what was entered, in order."""

    def __init__(self):
        self.current, self.seen = ("load", "first"), []

    def mark(self, following):
        self.current = following
        self.seen.append(following)

    def take(self):
        """Phases without those that hold nothing: one that is entered twice in a row counts once."""
        seen, self.seen = self.seen, []
        return [f"{phase} {step}" for n, (phase, step) in enumerate(seen) if n == 0 or seen[n - 1] != (phase, step)]


class Experts(torch.nn.Module):
    """A mixture that calls an expert only if it has tokens, as eager implementations do, and counts them for a bias without a gradient."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.router, self.experts = torch.nn.Linear(4, 3, bias=False), torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("bias", torch.zeros(3))
        self.register_buffer("counts", torch.zeros(3))

    def route(self, x):
        scores = self.router(x).softmax(-1)
        chosen = (scores + self.bias).topk(2, dim=-1).indices
        out = torch.zeros_like(x)
        for number in torch.unique(chosen).tolist():
            rows = torch.where(chosen == number)[0]
            self.counts[number] += rows.shape[0]
            out = out.index_add(0, rows, self.experts[number](x[rows]) * scores[rows, number, None])
        return out

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.route, x, use_reentrant=self.reentrant)

    def balance(self, *_):
        with torch.no_grad():
            self.bias -= 0.1 * (self.counts - self.counts.mean()).sign()
            self.counts.zero_()


def check_experts(expect):
    for reentrant in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), Experts(reentrant), torch.nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer.register_step_pre_hook(model[1].balance)
        for _ in range(2):
            for _ in range(2):  # micro-batches
                model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            expect("forward steady", "backward steady", "other steady", "forward steady", "backward steady", "other steady", "optimizer steady", "other steady")


def main():
    marks = Marks()
    phases = Phases(torch, marks)
    phases.watch()
    model, batch = torch.nn.Linear(4, 4), torch.ones(2, 4)
    plain, searching = torch.optim.AdamW(model.parameters()), torch.optim.LBFGS(model.parameters(), max_iter=2, tolerance_grad=0, tolerance_change=0)

    def closure():
        plain.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        return loss

    def expect(*names):
        found = marks.take()
        assert found == list(names), (found, names)

    closure()
    plain.step()
    expect("forward first", "backward first", "other first", "optimizer first", "other first")
    plain.step(closure)  # the update is the optimizer's, what the closure does is not
    expect("forward steady", "backward steady", "optimizer steady", "other steady")
    plain.step(closure=closure)
    expect("forward steady", "backward steady", "optimizer steady", "other steady")
    searching.step(closure)
    found = marks.take()
    assert found[:4] == ["forward steady", "backward steady", "optimizer steady", "forward steady"], found
    assert found[-2:] == ["optimizer steady", "other steady"] and phases.step == 4, (found, phases.step)

    losses = [model(batch).sum() for _ in range(3)]  # a pipeline's warm-up, then forward and backward in turns
    losses.pop(0).backward()
    losses.append(model(batch).sum())
    for loss in losses:
        loss.backward()
    plain.step()
    expect("forward steady", "backward steady", "other steady", "forward steady", "backward steady", "other steady", "backward steady", "other steady",
           "backward steady", "other steady", "optimizer steady", "other steady")
    assert not phases.notes, phases.notes  # no backward is taken for one whose forward was not seen

    check_experts(expect)

    function = torch.compile(lambda x: (x * model.weight).sum(), backend="eager")  # calls no module
    for _ in range(2):
        function(torch.ones(4, 4)).backward()
        plain.step()
    assert [name for name in marks.take() if "backward" in name] == ["backward steady"] * 2 and len(phases.notes) == 1, phases.notes


if __name__ == "__main__":
    main()
