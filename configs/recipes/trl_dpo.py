# recipe: preference training with TRL's DPOTrainer and a reference model; with FSDP2 on several GPUs, with LoRA by --lora-rank
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 trl>=1.0 datasets peft>=0.17
# launch: python torchrun
import os
import random
import string

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|bf16-pure|fp16-mixed
GRADIENT_CHECKPOINTING = "on"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
STEPS = 3  # --steps
LORA_RANK = 0  # --lora-rank
KERNELS = "default"  # --kernels default|liger|liger:PART=on,...

# Random letters, of which no tokenizer puts so many into a token that an answer is shorter than what it is cut to.
LETTERS_PER_TOKEN = 8


def pairs():
    """A micro-batch of N pairs is 2N sequences of SEQ_LEN tokens."""
    draw = random.Random(0)

    def text(tokens):
        return "".join(draw.choices(string.ascii_letters + string.digits, k=tokens * LETTERS_PER_TOKEN))

    count = STEPS * GRAD_ACCUM * MICRO_BATCH * int(os.environ.get("WORLD_SIZE", "1"))
    return Dataset.from_list([{"prompt": text(8), "chosen": text(SEQ_LEN), "rejected": text(SEQ_LEN)} for _ in range(count)])


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    how = {"dtype": "bfloat16" if PRECISION == "bf16-pure" else "float32"}
    arguments = DPOConfig(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        model_init_kwargs=None if several else how,
        max_length=SEQ_LEN,
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
    adapters = LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM") if LORA_RANK > 0 else None
    model, reference = MODEL, None
    if several:  # by name, TRL (1.16) spreads the reference over all cards under FSDP, and fails
        model = AutoModelForCausalLM.from_pretrained(MODEL, **how)
        reference = AutoModelForCausalLM.from_pretrained(MODEL, **how) if adapters is None else None
    DPOTrainer(model=model, ref_model=reference, args=arguments, train_dataset=pairs(), peft_config=adapters).train()


if __name__ == "__main__":
    main()
