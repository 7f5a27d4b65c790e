"""Llama and Qwen 3 as plain PyTorch modules that hold as little memory as eager mode allows.

Written for the comparison of docs/fsdp2-memory.md. Where PyTorch has a leaner call than the common one, it is used:
torch's fused RMS norm, grouped heads left to SDPA, rotations from a table in the compute dtype, and the loss inside of
the model, so that no caller holds logits. What kernels of a library can replace is in Ops.
"""

import dataclasses
from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def rotate(x, cos, sin):
    """x [B, heads, S, D]; cos and sin [S, D] in x's dtype."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def loss_of_chunk(linear, x, labels):
    return F.cross_entropy(linear(x).flatten(0, 1).float(), labels.flatten(), reduction="sum")


def loss_in_chunks(chunks):
    """Output and mean loss. In chunks, the logits of one part of the sequence exist at a time, in forward and in backward."""

    def loss(linear, x, labels):
        if chunks == 1:
            return loss_of_chunk(linear, x, labels) / labels.numel()
        total = 0.0
        for part, part_labels in zip(x.chunk(chunks, dim=1), labels.chunk(chunks, dim=1)):
            total = total + checkpoint(loss_of_chunk, linear, part, part_labels, use_reentrant=False, preserve_rng_state=False)
        return total / labels.numel()

    return loss


@dataclasses.dataclass(frozen=True)
class Ops:
    """PyTorch's own; lean.py has other people's kernels for the same."""

    loss: Callable  # (linear, x, labels) -> mean loss
    rotate: Callable = lambda q, k, cos, sin: (rotate(q, cos, sin), rotate(k, cos, sin))
    gate: Callable = lambda gate, up: F.silu(gate) * up
    norm: Callable = lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps)
    add: Callable = lambda x, branch: x + branch


class RMSNorm(nn.Module):
    def __init__(self, width, eps, ops):
        super().__init__()
        self.eps, self.ops = eps, ops
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.ops.norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config, ops):
        super().__init__()
        self.ops = ops
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        queries, keys = (config[name] * self.head_dim for name in ("num_attention_heads", "num_key_value_heads"))
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        if config["model_type"] == "qwen3":
            self.q_norm = RMSNorm(self.head_dim, config["rms_norm_eps"], ops)
            self.k_norm = RMSNorm(self.head_dim, config["rms_norm_eps"], ops)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def heads(self, x):
        return x.view(*x.shape[:2], -1, self.head_dim)

    def forward(self, x, cos, sin):
        q = self.q_norm(self.heads(self.q_proj(x))).transpose(1, 2)
        k = self.k_norm(self.heads(self.k_proj(x))).transpose(1, 2)
        q, k = self.ops.rotate(q, k, cos, sin)
        v = self.heads(self.v_proj(x)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config, ops):
        super().__init__()
        self.ops = ops
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(self.ops.gate(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Module):
    def __init__(self, config, checkpointed, ops):
        super().__init__()
        self.checkpointed, self.ops = checkpointed, ops
        self.self_attn, self.mlp = Attention(config, ops), MLP(config, ops)
        self.input_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"], ops)
        self.post_attention_layernorm = RMSNorm(config["hidden_size"], config["rms_norm_eps"], ops)

    def run(self, x, cos, sin):
        x = self.ops.add(x, self.self_attn(self.input_layernorm(x), cos, sin))
        return self.ops.add(x, self.mlp(self.post_attention_layernorm(x)))

    def forward(self, x, cos, sin):
        if not self.checkpointed:
            return self.run(x, cos, sin)
        return checkpoint(self.run, x, cos, sin, use_reentrant=False, preserve_rng_state=False)


class Head(nn.Module):
    """Norm, output and loss."""

    def __init__(self, config, ops):
        super().__init__()
        self.ops = ops
        self.norm = RMSNorm(config["hidden_size"], config["rms_norm_eps"], ops)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, x, labels):
        return self.ops.loss(self.lm_head, self.norm(x), labels)


class Model(nn.Module):
    def __init__(self, config, ops, checkpointed=False):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(Block(config, checkpointed, ops) for _ in range(config["num_hidden_layers"]))
        self.head = Head(config, ops)
        self.tie()

    def tie(self):
        """Makes one parameter of the two, also after `to_empty` has made two of it."""
        if self.config["tie_word_embeddings"]:
            self.head.lm_head.weight = self.embed_tokens.weight

    def make_rotations(self, sequence, device):
        pairs = torch.arange(0, self.config["head_dim"], 2, dtype=torch.float32) / self.config["head_dim"]
        angles = torch.outer(torch.arange(sequence, dtype=torch.float32), self.config["rope_theta"] ** -pairs).repeat(1, 2)
        self.cos, self.sin = (table.to(torch.bfloat16).to(device) for table in (angles.cos(), angles.sin()))

    def forward(self, ids, labels):
        x = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, self.cos, self.sin)
        return self.head(x, labels)
