// What clipping and PyTorch's optimizers allocate.
#pragma once

#include "program/pytorch/wrappers/wrapper.h"

namespace vramfit::eager {

/// A state of `parameter`, of zeros.
Tensor make_state(Heap& heap, const Trained& parameter, std::int64_t elements, Dtype dtype, const char* what);

/// clip_grad_norm_ with foreach: a norm a gradient, their total, the clamped scale. Returns the total norm.
Tensor clip_gradients(Torch& torch, Wrapper& wrapper);

/// torch.optim.AdamW over all parameters in the order in which the model holds them. States are made at the first step.
/// foreach: one list as large as all parameters lives through each step. loop (foreach=False): up to three tensors as
/// large as parameters that follow each other. fused: none, but a step counter on the card. deepspeed
/// (ops/adam/fused_adam.py): none, and the step is counted on the host. paged: paged_adamw_step.
void adamw_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state);

/// bitsandbytes' AdamW with averages in fp32, as the Trainer makes it (paged_adamw_32bit): those of parameters with
/// 100,000 elements or more in managed memory, outside the allocator.
void paged_adamw_step(Torch& torch, Wrapper& wrapper);

/// Likewise with averages of 8 bits (adamw_bnb_8bit, paged_adamw_8bit): fp32 for embeddings and for what has fewer than
/// 4096 elements. Only what is paged is in managed memory; scales never are. torchao: torchao_adamw_step. Takes no
/// dtype.
void adamw_8bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state);

/// torchao's AdamW with averages of 8 or 4 `bits`, as the Trainer makes it (adamw_torch_8bit, adamw_torch_4bit): in the
/// parameters' dtype for what has fewer than 4096 elements or isn't whole blocks of 256. The largest parameter decides
/// what a step needs beside states, 8 or 24 bytes for each of its elements, as only one is updated at a time.
void torchao_adamw_step(Torch& torch, Wrapper& wrapper, std::int64_t bits);
void adamw_4bit_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state);

/// torch.optim.SGD with momentum, which the first step's gradients begin: 4 bytes of an fp32 parameter, and no more.
void sgd_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state);

/// transformers' Adafactor. Throws NotModelled for matrices whose reductions are made in parts.
void transformers_adafactor_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state);

}  // namespace vramfit::eager
