# recipe: full fine-tuning with DeepSpeed's ZeRO-3, or ZeRO-1 or ZeRO-2 by --sharding, by transformers' Trainer
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 deepspeed>=0.17
# launch: torchrun
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainingArguments

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|fp16-mixed
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
OFFLOAD = "none"  # --offload none|optimizer|optimizer:pageable|params|params:pageable
OVERLAP_COMM = "default"  # --overlap-comm default|on|off
SHARDING = "full-shard"  # --sharding full-shard|shard-grad-op|shard-optimizer
ZERO3_SIZES = "default"  # --zero3-sizes default|auto|NAME=N,...
STEPS = 3  # --steps
KERNELS = "default"  # --kernels default|liger|liger:PART=on,...


class Tokens(torch.utils.data.Dataset):
    """Sequences of full length, of random tokens."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def sizes():
    """As DeepSpeed's configuration has them: "auto" and "max_live_parameters=0,sub_group_size=1000000" are what --zero3-sizes takes."""
    text = {"default": "", "auto": "prefetch_bucket_size=auto,param_persistence_threshold=auto"}.get(ZERO3_SIZES, ZERO3_SIZES)
    pairs = [size.split("=") for size in text.split(",") if size]
    return {name if name == "sub_group_size" else "stage3_" + name: value if value == "auto" else int(value) for name, value in pairs}


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    stage = {"shard-optimizer": 1, "shard-grad-op": 2, "full-shard": 3}[SHARDING]
    if stage < 3 and (ZERO3_SIZES != "default" or OFFLOAD.startswith("params")):
        sys.exit("--zero3-sizes and --offload params are ZeRO-3's: --sharding full-shard")
    of_zero3 = {"stage3_gather_16bit_weights_on_model_save": True, **sizes()} if stage == 3 else {}
    settings = {
        "zero_optimization": {"stage": stage, **of_zero3},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
    }
    if OVERLAP_COMM != "default":
        settings["zero_optimization"]["overlap_comm"] = OVERLAP_COMM == "on"
    if OFFLOAD != "none":
        if OPTIMIZER not in ("adamw_torch_fused", "adamw_torch", "deepspeed"):
            sys.exit("with --offload, DeepSpeed's own AdamW updates on the CPU: leave out --optimizer")
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": not OFFLOAD.endswith(":pageable")}
    if OPTIMIZER == "deepspeed":
        settings["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
    if OFFLOAD.startswith("params"):
        settings["zero_optimization"]["offload_param"] = {"device": "cpu", "pin_memory": not OFFLOAD.endswith(":pageable")}
    # Made before the model, so that weights are sharded while they are loaded. DeepSpeed keeps fp32 copies of half-precision weights.
    arguments = TrainingArguments(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GRAD_ACCUM,
        gradient_checkpointing=GRADIENT_CHECKPOINTING == "on",
        bf16=PRECISION == "bf16-mixed",
        fp16=PRECISION == "fp16-mixed",
        optim="adamw_torch_fused" if OPTIMIZER == "deepspeed" else OPTIMIZER,
        optim_args="momentum=0.9" if OPTIMIZER == "sgd" else None,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        **liger(),
        deepspeed=settings,
    )
    half = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
    config = AutoConfig.from_pretrained(MODEL)
    is_masked = config.model_type == "bert" or any(name.endswith("ForMaskedLM") for name in config.architectures or [])
    kind = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    model = kind.from_pretrained(MODEL, dtype=half.get(PRECISION, torch.float32))
    vocabulary = config.get_text_config().vocab_size
    Trainer(model=model, args=arguments, train_dataset=Tokens(vocabulary)).train()


if __name__ == "__main__":
    main()
