"""accelerate, DeepSpeed and Lightning on a small Llama. Usage: engines.py NAME"""
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tiny import on_card, say_held

SEQUENCE, VOCABULARY, STEPS = 256, 4096, 3
LOCAL = int(os.environ.get("LOCAL_RANK", 0))


def llama():
    config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=VOCABULARY,
                         max_position_embeddings=512, use_cache=False)
    return LlamaForCausalLM(config)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(3, VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def first_batches(loader):
    for step, batch in enumerate(loader):
        if step == STEPS:
            return
        yield batch


def accelerated(**settings):
    from accelerate import Accelerator
    accelerator = Accelerator(mixed_precision="bf16", **settings)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(Tokens(), batch_size=2))
    for batch in first_batches(loader):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if accelerator.is_main_process:
        say_held()
    accelerator.end_training()


def accelerate_ddp():
    accelerated()


def accelerate_fsdp2():
    from accelerate import FullyShardedDataParallelPlugin
    accelerated(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                                                           transformer_cls_names_to_wrap=["LlamaDecoderLayer"]))


def executable_batch_size():
    """accelerate's decorator halves the batch after an out-of-memory error."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=1024)
    def train(rows):
        model = on_card(llama)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(2):
            ids = torch.randint(3, VOCABULARY, (rows, SEQUENCE), generator=torch.Generator().manual_seed(step)).cuda()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print("rows", rows)
        del ids
        say_held()

    train()


def deepspeed(stage):
    import deepspeed as engine
    settings = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
                "zero_optimization": {"stage": stage, "reduce_bucket_size": 1 << 20, "allgather_bucket_size": 1 << 20}}
    engine.init_distributed("nccl")
    model = llama()
    engine, _, _, _ = engine.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=settings)
    for batch in first_batches(torch.utils.data.DataLoader(Tokens(), batch_size=2)):
        engine.backward(engine(**{name: value.cuda() for name, value in batch.items()}).loss)
        engine.step()
    say_held()


def zero1():
    deepspeed(1)


def zero2():
    deepspeed(2)


def zero3():
    deepspeed(3)


def lightning_trainer():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = llama()

        def training_step(self, batch):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.model.parameters())

        def on_train_end(self):
            say_held()

    trainer = lightning.Trainer(accelerator="gpu", devices=1, precision="bf16-mixed", max_steps=STEPS, accumulate_grad_batches=2, gradient_clip_val=1.0,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, logger=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(Tokens(), batch_size=2, num_workers=1))


def fabric():
    import lightning
    fabric = lightning.Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    model = llama()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    for batch in first_batches(fabric.setup_dataloaders(torch.utils.data.DataLoader(Tokens(), batch_size=2))):
        fabric.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
    say_held()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
