# recipe: full fine-tuning with transformers' Trainer; with FSDP2 on several GPUs
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10
# launch: python torchrun
import os

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainingArguments

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|bf16-pure|fp16-mixed
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
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
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    config = AutoConfig.from_pretrained(MODEL)
    is_masked = config.model_type == "bert" or any(name.endswith("ForMaskedLM") for name in config.architectures or [])
    kind = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    model = kind.from_pretrained(MODEL, dtype=torch.bfloat16 if PRECISION == "bf16-pure" else torch.float32)
    arguments = TrainingArguments(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GRAD_ACCUM,
        gradient_checkpointing=GRADIENT_CHECKPOINTING == "on",
        bf16=PRECISION.startswith("bf16"),
        fp16=PRECISION == "fp16-mixed",
        optim=OPTIMIZER,
        optim_args="momentum=0.9" if OPTIMIZER == "sgd" else None,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        **liger(),
        fsdp=several,
        fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"} if several else None,
    )
    vocabulary = config.get_text_config().vocab_size
    Trainer(model=model, args=arguments, train_dataset=Tokens(vocabulary)).train()


if __name__ == "__main__":
    main()
