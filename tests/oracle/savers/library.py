"""Trains transformers' Llama for three steps with memory savers of the libraries that people use, as their users write it: for phantom GPUs.

Prints the peaks of the caching allocator over all steps, or what a library raised in them. With several ranks (torchrun), or to offload parameters, FSDP2 shards layer by layer.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import re
import sys

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

STEPS = 3
SHARDED = int(os.environ.get("WORLD_SIZE", "1")) > 1 or "--offload-params" in sys.argv  # FSDP2 alone offloads parameters


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adamw")
    parser.add_argument("--checkpointing", choices=["none", "full", "every-2", "attention"], default="full")
    parser.add_argument("--loss", choices=["transformers", "liger"], default="transformers")
    parser.add_argument("--adapters", choices=["none", "lora", "rslora", "dora", "int8", "qlora"], default="none")
    parser.add_argument("--offload-params", action="store_true")
    parser.add_argument("--offload-activations", action="store_true")
    return parser.parse_args()


def torch_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-5, fused=True)


def torch_sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9, fused=not SHARDED)  # fused, it has no rule for DTensors


def torch_adafactor(parameters):
    return torch.optim.Adafactor(parameters, lr=1e-5)


def bitsandbytes_8bit(parameters):
    from bitsandbytes.optim import AdamW8bit
    return AdamW8bit(parameters, lr=1e-5)


def bitsandbytes_paged(parameters):
    from bitsandbytes.optim import PagedAdamW32bit
    return PagedAdamW32bit(parameters, lr=1e-5)


def bitsandbytes_paged_8bit(parameters):
    from bitsandbytes.optim import PagedAdamW8bit
    return PagedAdamW8bit(parameters, lr=1e-5)


def bitsandbytes_lion(parameters):
    from bitsandbytes.optim import Lion
    return Lion(parameters, lr=1e-5)


def torchao_8bit(parameters):
    from torchao.optim import AdamW8bit
    return AdamW8bit(parameters, lr=1e-5)


def torchao_4bit(parameters):
    from torchao.optim import AdamW4bit
    return AdamW4bit(parameters, lr=1e-5)


def torchao_fp8(parameters):
    from torchao.optim import AdamWFp8
    return AdamWFp8(parameters, lr=1e-5)


def torchao_stochastic(parameters):
    from torchao.optim import _AdamW
    return _AdamW(parameters, lr=1e-5, bf16_stochastic_round=True)


def torchao_offload(parameters, offload_gradients=False):
    from torchao.optim import CPUOffloadOptimizer
    return CPUOffloadOptimizer(parameters, torch.optim.AdamW, offload_gradients=offload_gradients, fused=True, lr=1e-5)


class InBackward:
    """PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass": an optimizer for each parameter, stepped by a hook."""

    def __init__(self, parameters):
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(functools.partial(self.update, torch_adamw([parameter])))

    @staticmethod
    def update(optimizer, _):
        optimizer.step()
        optimizer.zero_grad()

    def step(self):
        pass

    def zero_grad(self):
        pass


OPTIMIZERS = {"adamw": torch_adamw, "sgd": torch_sgd, "adafactor": torch_adafactor, "in-backward": InBackward,
              "bitsandbytes-8bit": bitsandbytes_8bit, "bitsandbytes-paged": bitsandbytes_paged, "bitsandbytes-paged-8bit": bitsandbytes_paged_8bit, "bitsandbytes-lion": bitsandbytes_lion,
              "torchao-8bit": torchao_8bit, "torchao-4bit": torchao_4bit, "torchao-fp8": torchao_fp8, "torchao-stochastic": torchao_stochastic,
              "torchao-offload": torchao_offload, "torchao-offload-gradients": functools.partial(torchao_offload, offload_gradients=True)}


def few_bits(options):
    """How bitsandbytes stores the base. FSDP2 shards floating dtypes alone, so that bytes of 4-bit weights are called bf16 there."""
    if options.adapters == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    sharded = {"bnb_4bit_quant_storage": torch.bfloat16} if SHARDED else {}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16, **sharded)


def model_of(options):
    """In bf16, with weights of no value: quantized ones are read from a folder ("vramfit fake-weights"), as transformers quantizes while it reads."""
    if options.adapters in ("int8", "qlora"):
        place = torch.cuda.current_device()
        return AutoModelForCausalLM.from_pretrained(pathlib.Path(options.config).parent, dtype=torch.bfloat16, quantization_config=few_bits(options), device_map={"": place})
    config = AutoConfig.from_pretrained(options.config)
    with torch.device("meta" if SHARDED else "cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def with_adapters(model, options):
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    if options.adapters in ("int8", "qlora") and not SHARDED:  # it makes norms and embeddings fp32, and FSDP2 gathers one dtype at a time
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=options.checkpointing == "full")
    scaled = {"use_rslora": options.adapters == "rslora", "use_dora": options.adapters == "dora"}
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", **scaled), autocast_adapter_dtype=False)


def layers_of(model):
    return next(module for name, module in model.named_modules() if name.endswith("layers"))


def keep_attention():
    from torch.utils.checkpoint import create_selective_checkpoint_contexts
    kept = [torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_cudnn_attention.default]
    return create_selective_checkpoint_contexts(kept)


def checkpoint(model, kind):
    if kind == "none":
        return
    selective = {"context_fn": keep_attention} if kind == "attention" else {}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **selective})
    model.enable_input_require_grads()
    if kind == "every-2":
        for layer in layers_of(model)[1::2]:
            layer.gradient_checkpointing = False


def shard(model, options):
    if not SHARDED:
        return
    policy = {"offload_policy": CPUOffloadPolicy()} if options.offload_params else {}
    for layer in layers_of(model):
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    if options.adapters == "qlora":
        torch.cuda.empty_cache()  # the whole model was there, which is usually loaded in host memory
    else:
        model.to_empty(device="cpu" if options.offload_params else "cuda")


def train(model, optimizer, trained, options):
    ids = torch.zeros(1, options.sequence, dtype=torch.int64, device="cuda")
    for _ in range(STEPS):
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if options.offload_activations else contextlib.nullcontext():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        del loss
        if options.optimizer not in ("in-backward", "torchao-offload", "torchao-offload-gradients"):
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()


def said(error):
    """Its first line; of torchao's, which lists arguments, what was called on what."""
    line = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}".split(", types=")[0]
    return re.sub("attempting to run .*?: func=", "... ", line)


def main():
    options = parse()
    if SHARDED:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if options.offload_params else "nccl")
    if options.loss == "liger":
        from liger_kernel.transformers import apply_liger_kernel_to_llama
        apply_liger_kernel_to_llama(rope=False, rms_norm=False, swiglu=False, cross_entropy=False, fused_linear_cross_entropy=True)
    model = model_of(options)
    if options.adapters != "none":
        model = with_adapters(model, options)
    checkpoint(model, options.checkpointing)
    shard(model, options)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[options.optimizer](trained)
    torch.cuda.reset_peak_memory_stats()
    try:
        train(model, optimizer, trained, options)
    except Exception as error:  # pylint: disable=broad-exception-caught
        print(json.dumps({"failed": said(error)}))
        return
    stats = torch.cuda.memory_stats()
    print(json.dumps({"allocated": stats["allocated_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"], "retries": stats["num_alloc_retries"]}))


if __name__ == "__main__":
    main()
