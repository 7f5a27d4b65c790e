"""Which phases a training script is in, where it steps with a closure (as Lightning and LBFGS do), and where it has several micro-batches
(as pipelines do). On the CPU, without a rehearsal: only the order of the phases is looked at.
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

    function = torch.compile(lambda x: (x * model.weight).sum(), backend="eager")  # calls no module
    for _ in range(2):
        function(torch.ones(4, 4)).backward()
        plain.step()
    assert [name for name in marks.take() if "backward" in name] == ["backward steady"] * 2 and len(phases.notes) == 1, phases.notes


if __name__ == "__main__":
    main()
