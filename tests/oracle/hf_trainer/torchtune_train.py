"""Trains a model as the recipe torchtune does, by torchtune's own recipes, and writes what the caching allocator did: train.py's arguments.

The recipe's own code runs: around it, the weights come from nowhere, and each step is marked.
"""

import gc
import importlib.util
import json
import os
import pathlib
import runpy
import sys
import types

import torch
from omegaconf import OmegaConf
from torchtune import config, training

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import train  # noqa: E402

RECIPES = FOLDER.parents[2] / "configs" / "recipes"
OPTIMIZERS = {"adamw:fused": "AdamW", "adamw:foreach": "AdamW", "adamw-8bit": "AdamW8bit", "adamw-8bit:paged": "PagedAdamW8bit", "adamw:paged": "PagedAdamW"}


def recipe_of(options):
    """The recipe as a module, with the choices of a job; its configuration with what it has no flag for."""
    spec = importlib.util.spec_from_file_location("train_torchtune", RECIPES / "torchtune.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    sys.modules[spec.name] = recipe
    folder = pathlib.Path(options.config).parent
    choices = {"MODEL": str(folder), "HERE": folder, "SEQ_LEN": options.sequence, "MICRO_BATCH": options.batch, "GRAD_ACCUM": options.accumulation, "PRECISION": options.precision,
               "GRADIENT_CHECKPOINTING": "on" if options.checkpointing == "full" else "off", "OPTIMIZER": OPTIMIZERS[options.optimizer], "STEPS": options.steps, "COMPONENTS": spec.name}
    for constant, value in choices.items():
        assert hasattr(recipe, constant), constant
        setattr(recipe, constant, value)
    made = recipe.training_config()
    more = {"clip_grad_norm": options.max_grad_norm or None, "fsdp_reshard_after_forward": options.fsdp != "shard-grad-op"}
    if options.optimizer == "adamw:foreach":
        del made.optimizer["fused"]
    recipe.training_config = lambda: OmegaConf.merge(made, more)
    return recipe


class Steps:
    """In place of the recipe's profiler, which it tells of each batch, or where it shards of each step."""

    def __init__(self, log, batches, steps):
        self.log, self.batches, self.steps, self.count = log, batches, steps, 0
        log.mark("step 1")

    def start(self):
        pass

    stop = start

    def step(self):
        self.count += 1
        number, rest = divmod(self.count, self.batches)
        if rest == 0:
            self.log.mark(f"step {number + 1}" if number < self.steps else "end")


def marked(base, options, log):
    """The recipe's class, whose weights have no values."""

    def weights(model):
        with torch.device("meta"), training.set_default_dtype(torch.float32 if options.precision == "fp32" else torch.bfloat16):
            made = config.instantiate(model)
        return {training.MODEL_KEY: {name: torch.empty_like(value, device="cpu") for name, value in made.state_dict().items()}}

    class Marked(base):
        def load_checkpoint(self, _):
            return weights(self.model)

        def setup(self, cfg):
            self.model = cfg.model
            if hasattr(self, "_checkpoint_client"):
                self._checkpoint_client.load_base_checkpoint = lambda: weights(cfg.model)
            super().setup(cfg)

        def train(self):
            self._profiler = Steps(log, options.accumulation if options.fsdp == "none" else 1, options.steps)
            super().train()

        def cleanup(self):
            log.write(options.events)
            super().cleanup()

    return Marked


def main(options):
    gc.disable()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cuda.enable_cudnn_sdp(options.attention != "flash")
    log = train.EventLog()
    log.mark("load")
    recipe = recipe_of(options)
    recipe.runpy = types.SimpleNamespace(run_path=lambda path: {name: marked(made, options, log) if name.startswith("FullFinetune") else made for name, made in runpy.run_path(path).items()})
    recipe.main()
    print(json.dumps(train.peaks()))


if __name__ == "__main__":
    main(train.parse(sys.argv[1:]))
