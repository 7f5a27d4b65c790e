"""Memory savers: the engine's flags, and what the library that people use for it is asked for (options of library.py)."""

import dataclasses

MODEL, CARD, SEQUENCE = "meta-llama/Llama-3.1-8B", "H200", 4096
# For updates in host memory, which a rehearsal really computes: 8 bytes for each parameter there.
SMALL = "meta-llama/Llama-3.2-1B"
CARDS = (1, 4, 8)
ALONE, SHARDED = (1,), (4, 8)
# Both sides: everything in bf16, AdamW's states too; one row of 4096 tokens.
BASE = {"precision": "bf16-pure", "state-dtype": "bf16", "loss": "full", "checkpointing": "full", "allocator": "expandable", "seq-len": SEQUENCE}
# What library.py does, as vramfit has rules for it: a loop with accelerate, whose model is loaded in bf16.
LOOP = {"stack": "accelerate", "precision": "bf16-pure", "optimizer": "adamw:fused", "checkpointing": "full", "allocator": "expandable", "seq-len": SEQUENCE}


@dataclasses.dataclass(frozen=True)
class Library:
    """How a library does the same, on the numbers of cards on which it can be tried, and those on which it fails."""
    name: str
    options: tuple
    cards: tuple = CARDS
    fails_on: tuple = ()
    stack: dict | None = None  # flags over LOOP that estimate the library's job


@dataclasses.dataclass(frozen=True)
class Saver:
    """Flags over BASE; where the libraries don't clip gradients, the engine doesn't either."""
    name: str
    flags: dict
    libraries: tuple = ()
    clips: bool = True
    cards: tuple = CARDS
    model: str = MODEL


def optimizer(name, option, stack=None):
    """One that FSDP2's shards are too much for."""
    return Library(name, ("--optimizer", option), fails_on=SHARDED, stack=stack)


LORA = {"method": "lora", "lora-rank": 16}
QLORA = {"method": "qlora", "lora-rank": 16}
OWN = {"kernels": "vramfit"}
# On one card alone layers write their gradients where they stay, so that these may be allocated first.
FIRST = {"allocator": "gradients-first"}


def beside_few_gaps(name, flags, library):
    """A saver whose library reserves less on one card than the engine does in its usual order."""
    return Saver(name, {**flags, **FIRST}, (library,), cards=ALONE), Saver(name, flags, (library,), cards=SHARDED)



SAVERS = [
    Saver("nothing but recomputed activations", {}, (Library("torch AdamW, transformers' checkpointing, FSDP2", (), stack={}),)),
    Saver("activations kept instead", {"checkpointing": "none"}, (Library("the same", ("--checkpointing", "none"), stack={"checkpointing": "none"}),)),
    Saver("every second layer recomputed", {"checkpointing": "every:2"}, (Library("transformers' checkpointing, in every second layer", ("--checkpointing", "every-2")),)),
    Saver("half of the activations recomputed, the cheapest to compute", {"checkpointing": "budget:50%"}),
    Saver("gradients allocated before their layer is recomputed", FIRST, cards=ALONE),
    *beside_few_gaps("attention kept", {"checkpointing": "selective:attention"}, Library("torch's selective checkpointing", ("--checkpointing", "attention"))),
    Saver("layers' inputs in host memory", {"offload": "activations"}, (Library("torch's save_on_cpu", ("--offload-activations",)),)),
    Saver("loss in chunks", {"loss": "chunked:16"}, (Library("Liger's fused linear cross-entropy", ("--loss", "liger")),)),
    Saver("updates within backward", {"optimizer-in-backward": "on"}, (Library("torch, a hook for each parameter", ("--optimizer", "in-backward")),), clips=False),
    Saver("AdamW, 8-bit states", {"optimizer": "adamw-8bit"}, (
        optimizer("bitsandbytes", "bitsandbytes-8bit", {"optimizer": "adamw-8bit"}), optimizer("torchao", "torchao-8bit", {"stack": "transformers", "optimizer": "adamw-8bit:torchao"}))),
    Saver("AdamW, 8-bit states, own kernels", {"optimizer": "adamw-8bit", **OWN}),
    Saver("AdamW, 4-bit states", {"optimizer": "adamw-4bit"}, (optimizer("torchao", "torchao-4bit", {"stack": "transformers", "optimizer": "adamw-4bit:torchao"}),)),
    Saver("AdamW, 4-bit states, own kernels", {"optimizer": "adamw-4bit", **OWN}),
    Saver("AdamW, FP8 states in blocks", {"optimizer": "adamw-fp8-blocks"}, (optimizer("torchao", "torchao-fp8"),)),
    Saver("AdamW, FP8 states in blocks, own kernels", {"optimizer": "adamw-fp8-blocks", **OWN}),
    Saver("AdamW, MS-AMP's states in FP8 and fp16", {"optimizer": "adamw-fp8"}),
    Saver("AdamW, MS-AMP's states in FP8 and fp16, own kernels", {"optimizer": "adamw-fp8", **OWN}),
    Saver("AdamW, stochastic rounding", {"optimizer": "adamw-stochastic"}, (Library("torchao", ("--optimizer", "torchao-stochastic")),)),
    Saver("AdamW, stochastic rounding, own kernels", {"optimizer": "adamw-stochastic", **OWN}),
    *beside_few_gaps("AdamW, paged states", {"optimizer": "adamw:paged"}, optimizer("bitsandbytes, states in fp32", "bitsandbytes-paged", {"optimizer": "adamw:paged"})),
    Saver("AdamW, paged 8-bit states", {"optimizer": "adamw-8bit:paged"}, (optimizer("bitsandbytes", "bitsandbytes-paged-8bit", {"optimizer": "adamw-8bit:paged"}),)),
    Saver("Lion", {"optimizer": "lion"}, (optimizer("bitsandbytes, state in fp32", "bitsandbytes-lion"),)),
    Saver("SGD with momentum", {"optimizer": "sgd"}, (Library("torch", ("--optimizer", "sgd")),)),
    Saver("Adafactor", {"optimizer": "adafactor"}, (optimizer("torch", "adafactor"),)),
    Saver("gradients in FP8", {"gradient-dtype": "fp8"}),
    Saver("states in host memory", {"offload": "optimizer"}),
    Saver("states and gradients in host memory", {"offload": "optimizer+gradients"}),
    Saver("states in host memory, weights in FP8", {"offload": "optimizer", "quantization": "fp8"}),
    Saver("states and gradients in host memory, weights in FP8", {"offload": "optimizer+gradients", "quantization": "fp8"}),
    Saver("all shards in host memory", {"offload": "params"}, (Library("FSDP2's CPUOffloadPolicy", ("--offload-params",), SHARDED, stack={"stack": "transformers", "offload": "params"}),)),
    Saver("all shards in host memory, weights in FP8", {"offload": "params", "quantization": "fp8"}),
    Saver("LoRA, rank 16", LORA, (Library("PEFT", ("--adapters", "lora"), stack=LORA),)),
    Saver("rsLoRA", {**LORA, "rslora": "on"}, (Library("PEFT", ("--adapters", "rslora"), stack={**LORA, "rslora": "on"}),)),
    Saver("DoRA", {**LORA, "dora": "on"}, (Library("PEFT", ("--adapters", "dora"), stack={**LORA, "dora": "on"}),)),
    Saver("LoRA over int8", {**LORA, "quantization": "int8"}),  # library.py has int8, too, but its peak follows from which activations are outliers, which a phantom GPU doesn't know
    Saver("QLoRA", QLORA, (Library("PEFT, bitsandbytes' NF4", ("--adapters", "qlora")),)),
    Saver("QLoRA, own kernels", {**QLORA, **OWN}),
    Saver("QLoRA, loss in chunks", {**QLORA, "loss": "chunked:16"}, (Library("PEFT, bitsandbytes' NF4, Liger", ("--adapters", "qlora", "--loss", "liger")),)),
    Saver("8-bit states, updates within backward, loss in chunks", {"optimizer": "adamw-8bit", "optimizer-in-backward": "on", "loss": "chunked:16"}, clips=False),
    Saver("8-bit states, updates within backward, loss in chunks, own kernels", {"optimizer": "adamw-8bit", "optimizer-in-backward": "on", "loss": "chunked:16", **OWN}, clips=False),
]

OFFLOADED = [
    Saver("nothing but recomputed activations", {}, (Library("torch AdamW, transformers' checkpointing", (), stack={}),), cards=ALONE, model=SMALL),
    Saver("states in host memory", {"offload": "optimizer"}, (Library("torchao's CPUOffloadOptimizer", ("--optimizer", "torchao-offload")),), clips=False, cards=ALONE, model=SMALL),
    Saver("states and gradients in host memory", {"offload": "optimizer+gradients"},
          (Library("torchao's CPUOffloadOptimizer, which offloads gradients", ("--optimizer", "torchao-offload-gradients")),), clips=False, cards=ALONE, model=SMALL),
    Saver("all parameters in host memory", {"offload": "params"}, (Library("FSDP2's CPUOffloadPolicy", ("--offload-params",)),), cards=ALONE, model=SMALL),
]

# Where the engine needs more than a library, by model, saver, number of cards and figure: why. Nowhere, at present.
HIGHER = {}
