"""Trains a model as the recipes accelerate-ddp and accelerate-fsdp2 do, and writes what the caching allocator did: train.py's arguments.

The recipe's own code runs: around it, the model is made without weights, and each step is marked.
"""

import functools
import gc
import importlib.util
import json
import os
import pathlib
import sys
import types

import accelerate
import bitsandbytes
import torch
import transformers
from peft import get_peft_model

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import train  # noqa: E402

RECIPES = FOLDER.parents[2] / "configs" / "recipes"
OPTIMIZERS = {"adamw:foreach": "AdamW", "adamw:fused": "AdamW:fused", "adamw-8bit": "AdamW8bit", "adamw-8bit:paged": "PagedAdamW8bit", "adamw:paged": "PagedAdamW32bit", "adafactor": "TransformersAdafactor"}


def recipe_of(options):
    """The recipe as a module, with the choices of a job."""
    name = "accelerate_ddp" if options.fsdp == "none" else "accelerate_fsdp2"
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    choices = {"MODEL": options.config, "SEQ_LEN": options.sequence, "MICRO_BATCH": options.batch, "GRAD_ACCUM": options.accumulation, "PRECISION": options.precision,
               "GRADIENT_CHECKPOINTING": "on" if options.checkpointing == "full" else "off", "OPTIMIZER": OPTIMIZERS[options.optimizer], "STEPS": options.steps}
    if options.fsdp != "none":
        choices["SHARDING"] = options.fsdp
    for constant, value in choices.items():
        assert hasattr(recipe, constant), constant
        setattr(recipe, constant, value)
    return recipe


def marked(options, log):
    """accelerate.Accelerator that marks where a step begins: with the move of its first micro-batch to the card."""

    class Marked(accelerate.Accelerator):
        steps = 1

        def prepare(self, *arguments, **more):
            model, optimizer, loader = super().prepare(*arguments, **more)
            zero_grad = optimizer.zero_grad

            def zero_and_mark():
                zero_grad()
                if self.sync_gradients:
                    self.steps += 1
                    log.mark(f"step {self.steps}" if self.steps <= options.steps else "end")
            optimizer.zero_grad = zero_and_mark
            log.mark("step 1")
            return model, optimizer, loader

        def clip_grad_norm_(self, *arguments, **more):
            return super().clip_grad_norm_(*arguments, **more) if options.max_grad_norm else None

    return Marked


def model_of(options, dtype):
    """With adapters in the order in which PEFT makes inputs of checkpointed layers need gradients: these are turned on before."""
    if options.lora_rank == 0:
        return train.built(transformers.AutoConfig.from_pretrained(options.config, **train.attention_of(options)), dtype if options.storage == "fp32" else torch.bfloat16)
    model = train.base_of(options)
    if options.checkpointing == "full":
        model.gradient_checkpointing_enable()
    return get_peft_model(model, train.adapters_of(options, None if train.is_masked(model.config) else "CAUSAL_LM"), autocast_adapter_dtype=train.storage_of(options) == torch.float32)


def main(options):
    gc.disable()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cuda.enable_cudnn_sdp(options.attention != "flash")
    log = train.EventLog()
    log.mark("load")
    for name in ("AdamW8bit", "PagedAdamW8bit", "PagedAdamW32bit"):
        setattr(torch.optim, name, getattr(bitsandbytes.optim, name))
    torch.optim.TransformersAdafactor = functools.partial(transformers.Adafactor, scale_parameter=False, relative_step=False)
    if options.offload != ["none"]:  # what `accelerate launch` sets; without it there is no process group for tensors on the host
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true", "FSDP_VERSION": "2"}
    recipe = recipe_of(options)
    recipe.AutoModelForCausalLM = recipe.AutoModelForMaskedLM = types.SimpleNamespace(from_pretrained=lambda config, dtype: model_of(options, dtype))
    recipe.Accelerator = marked(options, log)
    if options.offload != ["none"]:
        recipe.FullyShardedDataParallelPlugin = functools.partial(recipe.FullyShardedDataParallelPlugin, cpu_offload=True)
    recipe.main()
    log.write(options.events)
    print(json.dumps(train.peaks()))


if __name__ == "__main__":
    main(train.parse(sys.argv[1:]))
