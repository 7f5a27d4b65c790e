"""Sizes of the model; doesn't import torch, so reading a case doesn't need it."""

import dataclasses


@dataclasses.dataclass
class Dims:
    """Llama 3 8B."""

    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocabulary: int = 128256
    sequence: int = 8192

    @property
    def head_dim(self):
        return self.hidden // self.heads
