# recipe: full fine-tuning with Lightning's Trainer; with FSDP2 (ModelParallelStrategy) on several GPUs
# libraries: torch>=2.6 transformers>=5.0 lightning>=2.5
# launch: python torchrun
import os

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-mixed"  # --precision fp32|bf16-mixed|bf16-pure
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "AdamW"  # --optimizer AdamW|Adam|SGD|Adagrad|RMSprop|NAdam|RAdam
STEPS = 3  # --steps


class Tokens(torch.utils.data.Dataset):
    """Sequences of full length, of random tokens."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class FineTuning(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is not None:
            return
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16 if PRECISION == "bf16-pure" else torch.float32).train()
        if GRADIENT_CHECKPOINTING == "on":
            self.model.gradient_checkpointing_enable()
        if self.device_mesh is None:
            return
        # autocast sees sharded parameters, so FSDP2 does the casts.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if PRECISION == "bf16-mixed" else MixedPrecisionPolicy()
        mesh = self.device_mesh["data_parallel"]
        for layer in self.model.get_decoder().layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def training_step(self, batch):
        return self.model(**batch, use_cache=False).loss

    def configure_optimizers(self):
        return getattr(torch.optim, OPTIMIZER)(self.model.parameters(), lr=1e-5, **({"momentum": 0.9} if OPTIMIZER == "SGD" else {}))


def main():
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    several = ranks > 1
    strategy = ModelParallelStrategy(data_parallel_size=ranks, tensor_parallel_size=1) if several else "auto"
    autocast = PRECISION == "bf16-mixed" and not several
    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=local,
        num_nodes=ranks // local,
        strategy=strategy,
        precision="bf16-mixed" if autocast else "bf16-true" if PRECISION == "bf16-pure" else "32-true",
        accumulate_grad_batches=GRAD_ACCUM,
        max_steps=STEPS,
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
        default_root_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
    )
    vocabulary = AutoConfig.from_pretrained(MODEL).get_text_config().vocab_size
    trainer.fit(FineTuning(), torch.utils.data.DataLoader(Tokens(vocabulary), batch_size=MICRO_BATCH))


if __name__ == "__main__":
    main()
