# recipe: reinforcement learning with TRL's GRPOTrainer and DeepSpeed's ZeRO-1 to ZeRO-3, completions by transformers' generate; with LoRA by --lora-rank
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 trl>=1.0 datasets peft>=0.17 deepspeed>=0.17
# launch: torchrun
import os
import sys

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = "model"  # --model
SEQ_LEN = 64  # --seq-len
MICRO_BATCH = 4  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|fp16-mixed
GRADIENT_CHECKPOINTING = "on"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
OFFLOAD = "none"  # --offload none|optimizer|optimizer:pageable|params|params:pageable
SHARDING = "full-shard"  # --sharding full-shard|shard-grad-op|shard-optimizer
STEPS = 2  # --steps
LORA_RANK = 0  # --lora-rank
KERNELS = "default"  # --kernels default|liger|liger:PART=on,...


def length(completions, **_):
    return [float(len(completion)) for completion in completions]


def zero():
    """DeepSpeed's configuration."""
    stage = {"shard-optimizer": 1, "shard-grad-op": 2, "full-shard": 3}[SHARDING]
    settings = {"zero_optimization": {"stage": stage}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    for name in ("gradient_clipping", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size"):
        settings[name] = "auto"
    if OFFLOAD != "none":
        if OPTIMIZER not in ("adamw_torch_fused", "adamw_torch", "deepspeed"):
            sys.exit("with --offload, DeepSpeed's own AdamW updates on the CPU: leave out --optimizer")
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": not OFFLOAD.endswith(":pageable")}
    if OFFLOAD.startswith("params"):
        settings["zero_optimization"]["offload_param"] = {"device": "cpu", "pin_memory": not OFFLOAD.endswith(":pageable")}
    if OPTIMIZER == "deepspeed":
        settings["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
    return settings


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    # SEQ_LEN is the length of a completion, and a micro-batch is one prompt with so many of them.
    arguments = GRPOConfig(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        num_generations=MICRO_BATCH,
        max_completion_length=SEQ_LEN,
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
        deepspeed=zero(),
    )
    adapters = LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM") if LORA_RANK > 0 else None
    count = STEPS * GRAD_ACCUM * int(os.environ.get("WORLD_SIZE", "1"))
    prompts = Dataset.from_list([{"prompt": "Write a line of text."}] * count)
    GRPOTrainer(model=MODEL, reward_funcs=length, args=arguments, train_dataset=prompts, peft_config=adapters).train()


if __name__ == "__main__":
    main()
