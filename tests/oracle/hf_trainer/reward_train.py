"""Trains a model with TRL's RewardTrainer, as its users write it, and writes what the caching allocator did: train.py's arguments, a batch of N being N pairs."""

import os
import pathlib
import sys

from datasets import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.initialization import no_init_weights
from trl import RewardConfig, RewardTrainer

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import sft_train  # noqa: E402
import train  # noqa: E402


class Marked(train.Marks, RewardTrainer):
    pass


def pairs(options):
    """Full rows."""
    count = options.steps * options.accumulation * options.batch * int(os.environ.get("WORLD_SIZE", "1"))
    rows = [[1] * options.sequence] * count
    return Dataset.from_dict({"chosen_ids": rows, "rejected_ids": rows})


def base_of(options):
    """What the trainer loads itself where a model has a name."""
    config = AutoConfig.from_pretrained(options.config, num_labels=1, **train.attention_of(options))
    dtype = train.storage_of(options)
    if options.lora_rank:
        dtype = train.DTYPES[options.frozen_dtype] if options.precision != "fp32" else train.DTYPES["fp32"]
    with no_init_weights():
        model = AutoModelForSequenceClassification.from_config(config, dtype=dtype)
    return sft_train.quantized(model, options) if options.lora_rank and options.quantization != "none" else model


def trainer_of(options):
    adapters = train.adapters_of(options, "SEQ_CLS") if options.lora_rank else None
    is_quantized = options.lora_rank and options.quantization != "none"
    base = base_of(options) if is_quantized else None  # before ZeRO-3's arguments, as train.py says
    settings = RewardConfig(**train.settings_of(options), max_length=options.sequence)
    return Marked(model=base or base_of(options), args=settings, train_dataset=pairs(options), processing_class=sft_train.tokenizer(), peft_config=adapters)


if __name__ == "__main__":
    train.run(train.parse(sys.argv[1:]), trainer_of)
