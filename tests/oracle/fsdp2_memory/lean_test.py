"""The kernels of lean.py compute what PyTorch's own do: loss and gradients of a small model, on CPU by Triton's interpreter."""

import dataclasses
import os

os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined

import liger_kernel.ops.rms_norm
import numpy
import torch
import triton.language as tl
from triton.runtime import interpreter

from lean import LOSSES, lean_ops
from model import Model, Ops, loss_in_chunks

CONFIG = {"model_type": "qwen3", "tie_word_embeddings": True, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "vocab_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
BATCH, SEQUENCE = 2, 6
MOST_OFF = 1e-5  # relative, in fp32


def trained(ops):
    """Loss, and gradients by name."""
    torch.manual_seed(0)
    model = Model(CONFIG, ops, checkpointed=True)
    for parameter in model.parameters():
        parameter.data.normal_(mean=float(parameter.ndim == 1), std=0.1)
    model.make_rotations(SEQUENCE, "cpu")
    model.cos, model.sin = model.cos.float(), model.sin.float()
    ids, labels = torch.randint(0, CONFIG["vocab_size"], (2, BATCH, SEQUENCE))
    loss = model(ids, labels)
    (loss / 2).backward()  # as with accumulation, so that gradients made in forward have to be scaled
    return {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}


def off(values, wanted):
    """The largest relative difference."""
    return max(((values[name] - wanted[name]).norm() / wanted[name].norm()).item() for name in wanted)


class OneNumber(numpy.ndarray):
    """What the interpreter keeps a number in; NumPy no longer makes an int of it by itself."""

    def __int__(self):
        return int(self.item())


def number_of(argument):
    dtype, kept_as = (tl.float32, numpy.float32) if isinstance(argument, float) else (tl.int32, numpy.int32)
    return tl.tensor(interpreter.TensorHandle(numpy.array([argument], dtype=kept_as).view(OneNumber), dtype), dtype)


def make_interpretable():
    """The interpreter lacks what the compiler has: floats as arguments, numbers as ends of loops, the device library's rsqrt."""
    usual = interpreter._implicit_cvt
    interpreter._implicit_cvt = lambda argument: number_of(argument) if isinstance(argument, (int, float)) else usual(argument)
    liger_kernel.ops.rms_norm.rsqrt = lambda x: tl.math.rsqrt(x)


def main():
    make_interpretable()
    plain = Ops(loss=loss_in_chunks(1))
    ways = {"chunks": Ops(loss=loss_in_chunks(3)), **{loss: lean_ops(loss) for loss in LOSSES}}
    ways["another gate"] = dataclasses.replace(plain, gate=lambda gate, up: torch.relu(gate) * up)
    wanted = trained(plain)
    found = {name: off(trained(ops), wanted) for name, ops in ways.items()}
    print(", ".join(f"{name} {value:.1e}" for name, value in found.items()))
    return 0 if all((value < MOST_OFF) == (name != "another gate") for name, value in found.items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
