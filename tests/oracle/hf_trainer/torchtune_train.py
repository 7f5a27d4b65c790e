"""Trains a model as the recipe torchtune does, by torchtune's own recipes, and writes what the caching allocator did: train.py's arguments, and those of own_choices().

The recipe's own code runs: around it, the weights come from nowhere, and each step is marked.
"""

import argparse
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
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
OPTIMIZERS = {"adamw:fused": "AdamW", "adamw:foreach": "AdamW", "adamw-8bit": "AdamW8bit", "adamw-8bit:paged": "PagedAdamW8bit", "adamw:paged": "PagedAdamW"}


def recipe_of(options):
    """The recipe as a module, with the choices of a job; its configuration with what it has no flag for."""
    spec = importlib.util.spec_from_file_location("train_torchtune", RECIPES / "torchtune.py")
    recipe = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    sys.modules[spec.name] = recipe
    folder = pathlib.Path(options.config).parent
    choices = {"MODEL": str(folder), "HERE": folder, "SEQ_LEN": options.sequence, "MICRO_BATCH": options.batch, "GRAD_ACCUM": options.accumulation, "PRECISION": options.precision,
               "GRADIENT_CHECKPOINTING": "on" if options.checkpointing == "full" else "off", "OPTIMIZER": OPTIMIZERS[options.optimizer], "LORA_RANK": options.lora_rank, "STEPS": options.steps, "COMPONENTS": spec.name,
               "ROTARY_POSITIONS": options.rotary_positions, "OPTIMIZER_IN_BACKWARD": "on" if options.in_backward else "off"}
    for constant, value in choices.items():
        assert hasattr(recipe, constant), constant
        setattr(recipe, constant, value)
    made = recipe.training_config()
    more = {"clip_grad_norm": options.max_grad_norm or None, "fsdp_reshard_after_forward": options.fsdp != "shard-grad-op"}
    if options.whole_ends:
        more["custom_sharded_layers"] = None
    if options.activations:
        more["enable_activation_offloading"] = True
    if options.optimizer == "adamw:foreach":
        del made.optimizer["fused"]
    if options.lora_rank:
        made.model = {**made.model, **adapter_config(options)}
    recipe.training_config = lambda: OmegaConf.merge(made, more)
    return recipe


def adapter_config(options):
    """Where adapters are, and over what."""
    names = ATTENTION.keys() | MLP if options.lora_targets == "all-linear" else set(options.lora_targets.split(","))
    more = {"quantize_base": True} if options.quantization == "nf4-double" else {}
    return {"lora_attn_modules": [ATTENTION[name] for name in ATTENTION if name in names], "apply_lora_to_mlp": MLP <= names, "lora_dropout": options.lora_dropout, "use_dora": options.dora, **more}


class Steps:
    """In place of the recipe's profiler, which it tells of each batch, or where it shards of each step."""

    def __init__(self, log, batches, steps):
        self.log, self.batches, self.steps, self.count = log, batches, steps, 0
        log.mark("step 1")

    def start(self):
        pass

    stop = start

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def step(self):
        self.count += 1
        number, rest = divmod(self.count, self.batches)
        if rest == 0:
            self.log.mark(f"step {number + 1}" if number < self.steps else "end")


def marked(base, options, log):
    """The recipe's class, whose weights have no values."""

    def weights(model):
        with torch.device("meta"), training.set_default_dtype(torch.float32 if options.precision == "fp32" else torch.bfloat16):
            made = config.instantiate(OmegaConf.masked_copy(model, [key for key in model if key != "quantize_base"]))
        return {training.MODEL_KEY: {name: torch.empty_like(value, device="cpu") for name, value in made.state_dict().items() if ".lora_" not in name and ".magnitude" not in name}}

    class Marked(base):
        def load_checkpoint(self, *_, **__):
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


def own_choices(words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--whole-ends", action="store_true", help="no units of embedding and output")
    parser.add_argument("--activations", action="store_true", help="enable_activation_offloading")
    parser.add_argument("--in-backward", action="store_true", help="optimizer_in_bwd")
    parser.add_argument("--rotary-positions", type=int, default=0, help="max_seq_len; 0: as the sequence")
    return parser.parse_known_args(words)


def main(options):
    gc.disable()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cuda.enable_cudnn_sdp(options.attention != "flash")
    log = train.EventLog()
    log.mark("load")
    recipe = recipe_of(options)
    recipe.runpy = types.SimpleNamespace(run_path=lambda path: {name: marked(made, options, log) if name.startswith(("FullFinetune", "LoRAFinetune")) else made for name, made in runpy.run_path(path).items()})
    recipe.main()
    print(json.dumps(train.peaks()))


if __name__ == "__main__":
    own, words = own_choices(sys.argv[1:])
    main(types.SimpleNamespace(**vars(train.parse(words)), **vars(own)))
