"""Trains a model with TRL's DPOTrainer, as its users write it, and writes what the caching allocator did: train.py's arguments, a batch of N being N pairs."""

import os
import pathlib
import sys

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import sft_train  # noqa: E402
import train  # noqa: E402


class Marked(train.Marks, DPOTrainer):
    pass


def pairs(options):
    """Full rows behind a prompt of one token."""
    count = options.steps * options.accumulation * options.batch * int(os.environ.get("WORLD_SIZE", "1"))
    answer = " word" * options.sequence
    return Dataset.from_dict({"prompt": ["word"] * count, "chosen": [answer] * count, "rejected": [answer] * count})


def tokenizer():
    words = Tokenizer(WordLevel({"<eos>": 0, "word": 1}, unk_token="<eos>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<eos>")


def trainer_of(options):
    adapters = train.adapters_of(options) if options.lora_rank else None
    base = train.base_before_arguments(options, sft_train.quantized)
    settings = DPOConfig(**train.settings_of(options), max_length=options.sequence)
    model = base or train.base_of(options, sft_train.quantized)
    reference = None if adapters else train.base_of(options)  # what the trainer loads itself where a model has a name
    return Marked(model=model, ref_model=reference, args=settings, train_dataset=pairs(options), processing_class=tokenizer(), peft_config=adapters)


if __name__ == "__main__":
    train.run(train.parse(sys.argv[1:]), trainer_of)
