"""Trains a model as the recipes accelerate-ddp and accelerate-fsdp2 do, and writes what the caching allocator did: train.py's arguments.

The recipe's own code runs: around it, the model is made without weights, and each step is marked.
"""

import gc
import importlib.util
import json
import os
import pathlib
import sys

import accelerate
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import train  # noqa: E402

RECIPES = FOLDER.parents[2] / "configs" / "recipes"
OPTIMIZERS = {"adamw:foreach": "AdamW", "adamw:fused": "AdamW:fused"}


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


def main(options):
    gc.disable()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cuda.enable_cudnn_sdp(options.attention != "flash")
    log = train.EventLog()
    log.mark("load")
    transformers.AutoModelForCausalLM.from_pretrained = lambda config, dtype: train.built(transformers.AutoConfig.from_pretrained(config, **train.attention_of(options)), dtype if options.storage == "fp32" else torch.bfloat16)
    recipe = recipe_of(options)
    recipe.Accelerator = marked(options, log)
    recipe.main()
    log.write(options.events)
    print(json.dumps(train.peaks()))


if __name__ == "__main__":
    main(train.parse(sys.argv[1:]))
