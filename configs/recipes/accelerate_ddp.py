# recipe: full fine-tuning with accelerate in a training loop of one's own; with a copy of the model on each of several GPUs
# libraries: torch>=2.6 transformers>=5.0 accelerate>=1.10
# launch: python torchrun
import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|bf16-pure|fp16-mixed
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "AdamW"  # --optimizer AdamW|AdamW:fused|Adam|SGD|Adagrad|RMSprop|NAdam|RAdam
STEPS = 3  # --steps


class Tokens(torch.utils.data.Dataset):
    """Sequences of full length, of random tokens."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def main():
    mixed = PRECISION.removesuffix("-mixed") if PRECISION.endswith("-mixed") else "no"
    accelerator = Accelerator(mixed_precision=mixed, gradient_accumulation_steps=GRAD_ACCUM)
    config = AutoConfig.from_pretrained(MODEL)
    is_masked = config.model_type == "bert" or any(name.endswith("ForMaskedLM") for name in config.architectures or [])
    kind = AutoModelForMaskedLM if is_masked else AutoModelForCausalLM
    model = kind.from_pretrained(MODEL, dtype=torch.bfloat16 if PRECISION == "bf16-pure" else torch.float32)
    if GRADIENT_CHECKPOINTING == "on":
        model.gradient_checkpointing_enable()
    name, _, form = OPTIMIZER.partition(":")
    options = {"momentum": 0.9} if name == "SGD" else {form: True} if form else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-5, **options)
    vocabulary = config.get_text_config().vocab_size
    loader = torch.utils.data.DataLoader(Tokens(vocabulary), batch_size=MICRO_BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for number, batch in enumerate(loader, 1):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch, use_cache=False).loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if number == STEPS * GRAD_ACCUM:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
