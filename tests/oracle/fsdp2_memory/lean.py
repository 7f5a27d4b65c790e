"""The ops of model.py by Liger Kernel, the library that FSDP2's users take to save memory: its Triton kernels run as they are.

Both write the gradient of the logits over the logits, in the compute dtype. "full" holds all logits at once; "fused" makes the
gradients of the output's weight and input in forward, chunk by chunk. SwiGLU saves gate and up only and writes their gradients
over them, rotations and the norm's gradient are written in place. The sum of a residual, which no kernel is needed for, goes
into the branch's output.
"""

import sys

sys.modules.setdefault("peft", None)  # Liger only wants to know whether it is there, and importing it takes longer than all the rest

from liger_kernel.ops import (LigerCrossEntropyFunction, LigerFusedLinearCrossEntropyFunction, LigerRMSNormFunction,
                              LigerRopeFunction, LigerSiLUMulFunction)

from model import Ops

NO_OFFSET, CASTS, IN_PLACE = 0.0, "llama", True


def loss_over_logits(linear, x, labels):
    return LigerCrossEntropyFunction.apply(linear(x).flatten(0, 1), labels.flatten(), None)[0]


def loss_with_output(linear, x, labels):
    return LigerFusedLinearCrossEntropyFunction.apply(x.flatten(0, 1), linear.weight, labels.flatten())[0]


LOSSES = {"full": loss_over_logits, "fused": loss_with_output}


def lean_ops(loss):
    return Ops(loss=LOSSES[loss], rotate=LigerRopeFunction.apply, gate=LigerSiLUMulFunction.apply,
               norm=lambda x, weight, eps: LigerRMSNormFunction.apply(x, weight, eps, NO_OFFSET, CASTS, IN_PLACE),
               add=lambda x, branch: branch.add_(x))
