"""Memory savers: the engine's flags, and what the library that people use for it is asked for (options of library.py)."""

import dataclasses

MODEL, CARD, SEQUENCE = "meta-llama/Llama-3.1-8B", "H200", 4096
CARDS = (1, 4, 8)
# Both sides: everything in bf16, AdamW's states too; one row of 4096 tokens.
BASE = {"precision": "bf16-pure", "state-dtype": "bf16", "loss": "full", "checkpointing": "full", "allocator": "expandable", "seq-len": SEQUENCE}


@dataclasses.dataclass(frozen=True)
class Library:
    """How a library does the same, on the numbers of cards on which it can."""
    name: str
    options: tuple
    cards: tuple = CARDS


@dataclasses.dataclass(frozen=True)
class Saver:
    """Flags over BASE; where the libraries don't clip gradients, the engine doesn't either."""
    name: str
    flags: dict
    libraries: tuple = ()
    clips: bool = True
    cards: tuple = CARDS


# torchao's states of 8 and 4 bits, torch's Adafactor and its fused SGD fail under FSDP2 (torch 2.11, torchao 0.18); bitsandbytes knows nothing of shards.
ALONE = (1,)

SAVERS = [
    Saver("nothing but recomputed activations", {}, (Library("torch AdamW, transformers' checkpointing, FSDP2", ()),)),
    Saver("activations kept instead", {"checkpointing": "none"}, (Library("the same", ("--checkpointing", "none")),)),
    Saver("attention kept", {"checkpointing": "selective:attention"}, (Library("torch's selective checkpointing", ("--checkpointing", "attention")),)),
    Saver("layers' inputs in host memory", {"offload": "activations"}, (Library("torch's save_on_cpu", ("--offload-activations",)),)),
    Saver("loss in chunks", {"loss": "chunked:16"}, (Library("Liger's fused linear cross-entropy", ("--loss", "liger")),)),
    Saver("updates within backward", {"optimizer-in-backward": "on"}, (Library("torch, a hook for each parameter", ("--optimizer", "in-backward")),), clips=False),
    Saver("AdamW, 8-bit states", {"optimizer": "adamw-8bit"}, (
        Library("bitsandbytes", ("--optimizer", "bitsandbytes-8bit"), ALONE), Library("torchao", ("--optimizer", "torchao-8bit"), ALONE))),
    Saver("AdamW, 4-bit states", {"optimizer": "adamw-4bit"}, (Library("torchao", ("--optimizer", "torchao-4bit"), ALONE),)),
    Saver("Lion", {"optimizer": "lion"}, (Library("bitsandbytes, state in fp32", ("--optimizer", "bitsandbytes-lion"), ALONE),)),
    Saver("SGD with momentum", {"optimizer": "sgd"}, (Library("torch", ("--optimizer", "sgd"), ALONE),)),
    Saver("Adafactor", {"optimizer": "adafactor"}, (Library("torch", ("--optimizer", "adafactor"), ALONE),)),
    Saver("states in host memory", {"offload": "optimizer"}),
    Saver("states and gradients in host memory", {"offload": "optimizer+gradients"}),
    Saver("all shards in host memory", {"offload": "params"}, (Library("FSDP2's CPUOffloadPolicy", ("--offload-params",), (8,)),)),
    Saver("LoRA, rank 16", {"method": "lora", "lora-rank": 16}, (Library("PEFT", ("--adapters", "lora")),)),
    Saver("LoRA over int8", {"method": "lora", "lora-rank": 16, "quantization": "int8"}),
    Saver("QLoRA", {"method": "qlora", "lora-rank": 16}, (Library("PEFT, bitsandbytes' NF4", ("--adapters", "qlora"), ALONE),)),
    Saver("QLoRA, loss in chunks", {"method": "qlora", "lora-rank": 16, "loss": "chunked:16"}, (Library("PEFT, bitsandbytes' NF4, Liger", ("--adapters", "qlora", "--loss", "liger"), ALONE),)),
    Saver("8-bit states, updates within backward, loss in chunks", {"optimizer": "adamw-8bit", "optimizer-in-backward": "on", "loss": "chunked:16"}, clips=False),
]
