"""Trains a model with TRL's GRPOTrainer, as its users write it but without generation, and writes what the caching allocator did: train.py's arguments.

A stand-in gives completions that fill their rows behind a prompt of one token, and allocates nothing on the GPU.
"""

import os
import pathlib
import sys

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


def rows_of_step(options):
    return options.accumulation * options.batch * int(os.environ.get("WORLD_SIZE", "1"))


def trainer_of(options):
    adapters = train.adapters_of(options) if options.lora_rank else None
    rows = rows_of_step(options)
    base = train.base_before_arguments(options, sft_train.quantized)
    settings = GRPOConfig(**train.settings_of(options), max_completion_length=options.sequence - 1, num_generations=8 if rows % 8 == 0 else rows)
    prompts = Dataset.from_dict({"prompt": ["word"] * (options.steps * rows)})
    model = base or train.base_of(options, sft_train.quantized)
    return Marked(model=model, reward_funcs=reward, args=settings, train_dataset=prompts, processing_class=dpo_train.tokenizer(), peft_config=adapters)


if __name__ == "__main__":
    train.run(train.parse(sys.argv[1:]), trainer_of)
