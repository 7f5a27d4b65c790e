# recipe: reinforcement learning with TRL's GRPOTrainer, completions by transformers' generate; on one GPU
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10 trl>=1.0 datasets peft>=0.17
# launch: python
import os

from datasets import Dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = "model"  # --model
SEQ_LEN = 64  # --seq-len
MICRO_BATCH = 4  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|bf16-pure|fp16-mixed
GRADIENT_CHECKPOINTING = "on"  # --gradient-checkpointing on|off
OPTIMIZER = "adamw_torch_fused"  # --optimizer
STEPS = 2  # --steps
LORA_RANK = 0  # --lora-rank
KERNELS = "default"  # --kernels default|liger|liger:PART=on,...


def length(completions, **_):
    return [float(len(completion)) for completion in completions]


def liger():
    """use_liger_kernel and its parts, of "liger" and of "liger:rope=off,swiglu=on"."""
    kind, _, text = KERNELS.partition(":")
    parts = dict(part.split("=") for part in text.split(",")) if text else {}
    return {"use_liger_kernel": True, "liger_kernel_config": {name: value == "on" for name, value in parts.items()}} if kind == "liger" else {}


def main():
    # SEQ_LEN is the length of a completion, and a micro-batch is one prompt with so many of them.
    arguments = GRPOConfig(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        model_init_kwargs={"dtype": "bfloat16" if PRECISION == "bf16-pure" else "float32"},
        num_generations=MICRO_BATCH,
        max_completion_length=SEQ_LEN,
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
    )
    adapters = LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM") if LORA_RANK > 0 else None
    prompts = Dataset.from_list([{"prompt": "Write a line of text."}] * (STEPS * GRAD_ACCUM))
    GRPOTrainer(model=MODEL, reward_funcs=length, args=arguments, train_dataset=prompts, peft_config=adapters).train()


if __name__ == "__main__":
    main()
