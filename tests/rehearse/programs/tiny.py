"""What the programs here share: a small language model, batches, and what is held at the end."""
import gc

import torch
from torch import nn

VOCABULARY, WIDTH, LAYERS, HEADS, SEQUENCE, BATCH = 4096, 512, 4, 8, 256, 4


class Block(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        heads = self.attention_in(self.norm(x)).view(rows, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.feed_norm(x))))


class LanguageModel(nn.Module):
    def __init__(self, layers=LAYERS, width=WIDTH):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def on_card(make, *arguments, **keywords):
    with torch.device("cuda"):
        return make(*arguments, **keywords)


def tokens(step, rows=BATCH, length=SEQUENCE):
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(step)).cuda()


def loss_of(model, ids):
    return nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def step_of(model, optimizer, step):
    loss_of(model, tokens(step)).backward()
    optimizer.step()
    optimizer.zero_grad()


def say_held(card=0):
    """Requested bytes, without what the allocator rounds up."""
    gc.collect()
    print("held", torch.cuda.memory_stats(card)["requested_bytes.all.current"], flush=True)
