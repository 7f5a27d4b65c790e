"""Helpers for counting by hand, from shapes, what the programs of programs/ hold and need. Requested bytes: what the allocator makes of them is not counted."""
from dataclasses import dataclass

from hand_counts import CUBLASLT_WORKSPACE, CUBLAS_WORKSPACES

BF16, FP32, INT64 = 2, 4, 8
CUBLAS_WORKSPACE = CUBLAS_WORKSPACES // 2  # of one thread
WORKSPACES = CUBLAS_WORKSPACES + CUBLASLT_WORKSPACE  # forward multiplies with a bias, backward without
# On compute capability 8.9, PyTorch asks for two pieces of 4 MiB and eight of 16 KiB.
WORKSPACES_OF_8_9 = 2 * (2 * (4 << 20) + 8 * (16 << 10)) + CUBLASLT_WORKSPACE
VOCABULARY, WIDTH, LAYERS, SEQUENCE, BATCH = 4096, 512, 4, 256, 4  # of programs/tiny.py


@dataclass(frozen=True)
class Count:
    held: int  # what the program prints after its last step
    least: int  # at the peak, at least
    most: int  # at the peak, at most
    within: float = 0  # a share by which `held` may differ


def training(held, gradients, kept, largest, within=0):
    """Least: the optimizer has gradients beside what is held, or backward begins with all that forward `kept`. Most: both, a copy of the gradients, a
    quarter of what is kept, and four of the `largest` tensor, for what backward and the optimizer make on the way."""
    return Count(held, max(held + gradients, held + kept), held + 2 * gradients + kept + kept // 4 + 4 * largest, within)


def linear(inputs, outputs, bias=True):
    return inputs * outputs + (outputs if bias else 0)


def feed_forward(width, inner):
    return linear(width, inner) + linear(inner, width)


def block(width=WIDTH):
    norms = 2 * 2 * width
    return linear(width, 3 * width) + linear(width, width) + feed_forward(width, 4 * width) + norms


def language_model(layers=LAYERS, width=WIDTH):
    return 2 * VOCABULARY * width + layers * block(width) + 2 * width


LANGUAGE_MODEL = language_model()
LOGITS = BATCH * SEQUENCE * VOCABULARY


def kept_by_blocks(element=FP32, layers=LAYERS, width=WIDTH):
    """The inputs of two norms and of four linears (1, 1, 1 and 4 widths; attention's output is one of them), q, k and v, and the GELU's input of 4 widths."""
    return element * BATCH * SEQUENCE * layers * width * (2 + 1 + 3 + 1 + 1 + 4 + 4)


def tiny(weights=FP32, states=None, rest=0, kept=None, gradients=FP32, workspaces=WORKSPACES, activations=FP32, within=0):
    """programs/tiny.py's language model: bytes of a weight with all its copies, of its states and of its gradient; `rest`: what else the program holds."""
    states = 2 * weights if states is None else states
    held = (weights + states) * LANGUAGE_MODEL + workspaces + rest
    kept = (kept_by_blocks(activations) if kept is None else kept) + 2 * activations * LOGITS * (SEQUENCE - 1) // SEQUENCE  # logits, and their logarithms
    return training(int(held), int(gradients * LANGUAGE_MODEL), kept, FP32 * LOGITS, within)


def small(parameters, kept, largest, states=2 * FP32, rest=0, workspaces=WORKSPACES, within=0):
    """A model of so many fp32 weights."""
    return training((FP32 + states) * parameters + workspaces + rest, FP32 * parameters, kept, largest, within)


def forward_only(held, least, most, within=0):
    return Count(held, held + least, held + most, within)
