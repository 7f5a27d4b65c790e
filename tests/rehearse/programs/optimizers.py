"""Optimizers of bitsandbytes and torchao. Usage: optimizers.py NAME"""
import sys

from tiny import LanguageModel, on_card, say_held, step_of


def train(make):
    model = on_card(LanguageModel)
    optimizer = make(model.parameters())
    for step in range(3):
        step_of(model, optimizer, step)
    say_held()


def bitsandbytes_adam():
    import bitsandbytes
    train(bitsandbytes.optim.AdamW8bit)


def bitsandbytes_paged():
    import bitsandbytes
    train(bitsandbytes.optim.PagedAdamW)


def bitsandbytes_lion():
    import bitsandbytes
    train(bitsandbytes.optim.Lion8bit)


def torchao_adam():
    from torchao.optim import AdamW4bit
    train(AdamW4bit)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
