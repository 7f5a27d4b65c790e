"""Trains a model with TRL's GRPOTrainer, as its users write it but without generation, and writes what the caching allocator did: train.py's arguments, and some of GRPOConfig's.

A stand-in gives completions that fill their rows behind a prompt of one token, and allocates nothing on the GPU.
"""

import argparse
import os
import pathlib
import sys

import trl.trainer.grpo_trainer
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import dpo_train  # noqa: E402
import sft_train  # noqa: E402
import train  # noqa: E402


class Marked(train.Marks, GRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *_):
        self.eos_token_ids = [0]  # none of which is among them, whatever the family's is
        return [[1] * self.max_completion_length for _ in prompt_ids], None


def reward(completions, **_):
    return [float(number) for number, _ in enumerate(completions)]


def choices_of(arguments):
    """Those of GRPOConfig, and what is train.py's."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--beta", type=float, default=0)
    parser.add_argument("--num-iterations", type=int, default=1)
    parser.add_argument("--steps-per-generation", type=int, default=None)
    return parser.parse_known_args(arguments)


def trainer_of(options, choices):
    adapters = train.adapters_of(options) if options.lora_rank else None
    rows = (choices.steps_per_generation or options.accumulation) * options.batch * int(os.environ.get("WORLD_SIZE", "1"))
    base = train.base_before_arguments(options, sft_train.quantized)
    settings = GRPOConfig(**train.settings_of(options), **vars(choices), max_completion_length=options.sequence - 1, num_generations=8 if rows % 8 == 0 else rows)
    trl.trainer.grpo_trainer.create_model_from_path = lambda *_, **__: train.base_of(options).eval()  # a model that has no path; from_pretrained's has no dropout
    prompts = Dataset.from_dict({"prompt": ["word"] * (options.steps * rows)})
    model = base or train.base_of(options, sft_train.quantized)
    return Marked(model=model, reward_funcs=reward, args=settings, train_dataset=prompts, processing_class=dpo_train.tokenizer(), peft_config=adapters)


if __name__ == "__main__":
    chosen, others = choices_of(sys.argv[1:])
    train.run(train.parse(others), lambda options: trainer_of(options, chosen))
