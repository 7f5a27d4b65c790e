# recipe: LoRA with PEFT and transformers' Trainer; one copy of the model on each GPU, or a part of it with FSDP2
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 peft>=0.17
# launch: python torchrun
import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainingArguments

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
STEPS = 3  # --steps
LORA_RANK = 16  # --lora-rank
SHARDING = "no-shard"  # --sharding no-shard|full-shard
KERNELS = "default"  # --kernels default|liger|liger:PART=on,...


class Tokens(torch.utils.data.Dataset):
    """Sequences of full length, of random tokens."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    sharded = SHARDING == "full-shard" and int(os.environ.get("WORLD_SIZE", "1")) > 1
    # The frozen weights are in bf16; PEFT keeps its adapters in fp32.
    config = AutoConfig.from_pretrained(MODEL)
    is_masked = config.model_type == "bert" or any(name.endswith("ForMaskedLM") for name in config.architectures or [])
    kind = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    model = kind.from_pretrained(MODEL, dtype=torch.float32 if PRECISION == "fp32" else torch.bfloat16)
    task = None if is_masked else "CAUSAL_LM"  # PEFT has no task for masked models
    model = get_peft_model(model, LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type=task))
    arguments = TrainingArguments(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GRAD_ACCUM,
        gradient_checkpointing=GRADIENT_CHECKPOINTING == "on",
        bf16=PRECISION != "fp32",
        optim=OPTIMIZER,
        optim_args="momentum=0.9" if OPTIMIZER == "sgd" else None,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        **liger(),
        fsdp=sharded,
        fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"} if sharded else None,
    )
    vocabulary = config.get_text_config().vocab_size
    Trainer(model=model, args=arguments, train_dataset=Tokens(vocabulary)).train()


if __name__ == "__main__":
    main()
