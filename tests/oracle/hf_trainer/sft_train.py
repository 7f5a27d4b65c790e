"""Trains a model with TRL's SFTTrainer, as its users write it, and writes what the caching allocator did: train.py's arguments."""

import os
import pathlib
import sys

from bitsandbytes.backends.cuda import ops as bitsandbytes_ops
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER))
import train  # noqa: E402


class Marked(train.Marks, SFTTrainer):
    pass


def rows(options):
    """Full ones. `bfd` makes masks where a micro-batch has two documents or more, which one of a single row has if each row is two."""
    count = options.steps * options.accumulation * options.batch * int(os.environ.get("WORLD_SIZE", "1"))
    row = [[0] * options.sequence]
    if options.packing == "bfd" and options.batch == 1:
        first = (options.sequence + 1) // 2  # of more tokens, if they can't be equal, and so put first into each row
        row = [[0] * first, [0] * (options.sequence - first)]
    return Dataset.from_dict({"input_ids": row * count})


def packing_of(options):
    return {} if options.packing == "none" else {"packing": True, "packing_strategy": options.packing}


def tokenizer():
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"<eos>": 0}, unk_token="<eos>")), eos_token="<eos>", pad_token="<eos>")


class WithoutKernels:
    """bitsandbytes' library without launches. In a rehearsal they compute nothing, but what lies around their arguments counts as written: labels, too, whose number would be assumed."""

    def __init__(self, library):
        self.library = library

    def __getattr__(self, name):
        return (lambda *_: None) if name.startswith(("cdequantize", "cgemm_4bit")) else getattr(self.library, name)


def quantized(model, options):
    """SFTTrainer prepares nothing of what isn't quantized."""
    bitsandbytes_ops.lib = WithoutKernels(bitsandbytes_ops.lib)
    return train.loaded_in_4_bits(model, options, train.DTYPES[options.frozen_dtype])


def trainer_of(options):
    adapters = train.adapters_of(options) if options.lora_rank else None
    base = train.base_before_arguments(options, quantized)
    settings = SFTConfig(**train.settings_of(options), **packing_of(options), max_length=options.sequence)
    return Marked(model=base or train.base_of(options, quantized), args=settings, train_dataset=rows(options), processing_class=tokenizer(), peft_config=adapters)


if __name__ == "__main__":
    train.run(train.parse(sys.argv[1:]), trainer_of)
