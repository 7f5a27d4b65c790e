"""Models that are not language models, and other ways to differentiate. Usage: layers.py NAME"""
import gc
import sys

import torch
from torch import nn

from tiny import on_card, say_held

STEPS = 3


def train(model, make_batch, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(make_batch()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


class LastHidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.head = nn.Linear(512, 128)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def recurrent():
    train(on_card(LastHidden), lambda: torch.randn(16, 64, 256, device="cuda"))


def embedding_bag():
    table = on_card(nn.EmbeddingBag, 200_000, 64, sparse=True)
    head = on_card(nn.Linear, 64, 1)
    sparse, dense = torch.optim.SparseAdam(table.parameters()), torch.optim.AdamW(head.parameters())
    draw = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        ids = torch.randint(0, 200_000, (4096,), generator=draw).cuda()
        offsets = torch.arange(0, 4096, 8, device="cuda")
        head(table(ids, offsets)).mean().backward()
        for optimizer in (sparse, dense):
            optimizer.step()
            optimizer.zero_grad()
    say_held()


class SquaredRelu(torch.autograd.Function):
    """Keeps its input alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x.relu() * gradient


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return self.down(SquaredRelu.apply(self.up(x)))


def custom_function():
    train(on_card(lambda: nn.Sequential(*(WithFunction() for _ in range(4)))), lambda: torch.randn(2048, 512, device="cuda"))


def per_sample_gradients():
    """torch.func: a gradient for each of 32 samples."""
    gc.disable()  # it would free, at some moment or other, what vmap leaves in cycles
    torch.autograd.set_multithreading_enabled(False)  # autograd's thread lets go of its last node when it gets to it
    model = on_card(lambda: nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 256)))
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    for _ in range(STEPS):
        gradients = each(weights, torch.randn(32, 512, device="cuda"))
        for name, gradient in gradients.items():
            assert gradient.shape == (32, *weights[name].shape)
            weights[name] = weights[name] - 0.1 * gradient.mean(0)
        del gradients, gradient
    model.zero_grad()
    say_held()


def adversarial():
    """Two networks, two optimizers."""
    maker = on_card(lambda: nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 4096)))
    judge = on_card(lambda: nn.Sequential(nn.Linear(4096, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)))
    for_maker, for_judge = (torch.optim.Adam(each.parameters(), lr=2e-4, betas=(0.5, 0.999)) for each in (maker, judge))
    measure = nn.BCEWithLogitsLoss()
    yes, no = torch.ones(256, 1, device="cuda"), torch.zeros(256, 1, device="cuda")
    for _ in range(STEPS):
        made = maker(torch.randn(256, 128, device="cuda"))
        for_judge.zero_grad()
        (measure(judge(torch.randn(256, 4096, device="cuda")), yes) + measure(judge(made.detach()), no)).backward()
        for_judge.step()
        for_maker.zero_grad()
        measure(judge(made), yes).backward()
        for_maker.step()
    for_maker.zero_grad()
    for_judge.zero_grad()
    say_held()


class Stage(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def convolution():
    model = on_card(lambda: nn.Sequential(Stage(3, 64), Stage(64, 128), Stage(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)))
    model = model.to(memory_format=torch.channels_last)
    train(model, lambda: torch.randn(16, 3, 128, 128, device="cuda"), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


def nested():
    """Sequences of different lengths in one jagged tensor."""
    model = on_card(lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        parts = [torch.randn(50 + 30 * (step + number), 256, device="cuda") for number in range(4)]
        model(torch.nested.nested_tensor(parts, layout=torch.jagged)).values().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
