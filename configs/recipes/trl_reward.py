# recipe: a reward model with TRL's RewardTrainer, of pairs of rows; with FSDP2 on several GPUs, with LoRA by --lora-rank
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 trl>=1.0 datasets peft>=0.17
# launch: python torchrun
import os

from datasets import Dataset
from peft import LoraConfig
from trl import RewardConfig, RewardTrainer

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


def pairs():
    """A micro-batch of N pairs is 2N sequences of SEQ_LEN tokens; which tokens makes no difference."""
    count = STEPS * GRAD_ACCUM * MICRO_BATCH * int(os.environ.get("WORLD_SIZE", "1"))
    return Dataset.from_dict({"chosen_ids": [[1] * SEQ_LEN] * count, "rejected_ids": [[2] * SEQ_LEN] * count})


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    arguments = RewardConfig(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        model_init_kwargs={"dtype": "bfloat16" if PRECISION == "bf16-pure" else "float32"},
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
    adapters = LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="SEQ_CLS") if LORA_RANK > 0 else None
    RewardTrainer(model=MODEL, args=arguments, train_dataset=pairs(), peft_config=adapters).train()


if __name__ == "__main__":
    main()
