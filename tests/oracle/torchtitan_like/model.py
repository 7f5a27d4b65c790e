"""A Llama 3 whose modules allocate and save for backward as torchtitan's did in December 2024.

Written for these tests from what that model does (pytorch/torchtitan, commit 9dec370): norms in float32 op by op, rotary
embeddings as complex products, key/value heads repeated before attention, SwiGLU, separate projections, no biases.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Date:
    """What differed at other dates. Defaults: December 2024."""

    float_output: bool = False  # until July 2024 the model made its logits float32
    fused_norm: bool = False    # in 2025 norms were torch.nn.RMSNorm


def rotations(dims, theta=500000.0):
    """Unit complex numbers, one a position and pair of channels: [S, D/2]."""
    pair = torch.arange(0, dims.head_dim, 2)[: dims.head_dim // 2].float() / dims.head_dim
    frequency = 1.0 / (theta**pair)
    position = torch.arange(dims.sequence, device=frequency.device)
    angle = torch.outer(position, frequency).float()
    return torch.polar(torch.ones_like(angle), angle)


def rotate(q, k, turns):
    """[B, S, heads, D] each, in its own dtype; the products are complex64. Both are held to the end, as there."""
    q_pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    k_pairs = torch.view_as_complex(k.float().reshape(*k.shape[:-1], -1, 2))
    turns = turns[: q.shape[1]].view(1, q.shape[1], 1, q_pairs.shape[-1])
    q_turned = torch.view_as_real(q_pairs * turns).flatten(3)
    k_turned = torch.view_as_real(k_pairs * turns).flatten(3)
    return q_turned.type_as(q), k_turned.type_as(k)


def repeat_heads(x, times):
    if times == 1:
        return x
    batch, sequence, heads, dim = x.shape
    return x.unsqueeze(3).expand(batch, sequence, heads, times, dim).reshape(batch, sequence, heads * times, dim)


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def normalized(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        rounded = self.normalized(x.float()).type_as(x)
        return rounded * self.weight


class Attention(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.head_dim, self.repeats = dims.head_dim, dims.heads // dims.kv_heads
        self.wq = nn.Linear(dims.hidden, dims.heads * dims.head_dim, bias=False)
        self.wk = nn.Linear(dims.hidden, dims.kv_heads * dims.head_dim, bias=False)
        self.wv = nn.Linear(dims.hidden, dims.kv_heads * dims.head_dim, bias=False)
        self.wo = nn.Linear(dims.heads * dims.head_dim, dims.hidden, bias=False)

    def forward(self, x, turns):
        batch, sequence, _ = x.shape
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q = q.view(batch, sequence, -1, self.head_dim)
        k = k.view(batch, sequence, -1, self.head_dim)
        v = v.view(batch, sequence, -1, self.head_dim)
        q, k = rotate(q, k, turns)
        keys, values = repeat_heads(k, self.repeats), repeat_heads(v, self.repeats)
        q, k, v = q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).contiguous()
        return self.wo(out.view(batch, sequence, -1))


class FeedForward(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.w1 = nn.Linear(dims.hidden, dims.ffn, bias=False)
        self.w2 = nn.Linear(dims.ffn, dims.hidden, bias=False)
        self.w3 = nn.Linear(dims.hidden, dims.ffn, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dims, norm):
        super().__init__()
        self.attention = Attention(dims)
        self.feed_forward = FeedForward(dims)
        self.attention_norm = norm(dims.hidden)
        self.ffn_norm = norm(dims.hidden)

    def forward(self, x, turns):
        h = x + self.attention(self.attention_norm(x), turns)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self, dims, date=Date()):
        super().__init__()
        self.dims, self.date = dims, date
        norm = nn.RMSNorm if date.fused_norm else RMSNorm
        self.tok_embeddings = nn.Embedding(dims.vocabulary, dims.hidden)
        self.register_buffer("turns", rotations(dims), persistent=True)
        self.layers = nn.ModuleDict({str(i): Block(dims, norm) for i in range(dims.layers)})
        self.norm = norm(dims.hidden)
        self.output = nn.Linear(dims.hidden, dims.vocabulary, bias=False)

    @torch.no_grad()
    def initialize(self):
        """Fills parameters and the table in place, on whatever device they lie. Plain normal values, where torchtitan
        truncates them: neither allocates, and truncation compiles a kernel."""
        with torch.device(self.turns.device):
            self.turns = rotations(self.dims)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.ones_(parameter)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for block in self.layers.values():
            h = block(h, self.turns)
        h = self.norm(h)
        if self.date.float_output:
            return self.output(h).float()
        return self.output(h)
