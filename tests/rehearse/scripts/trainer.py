"""A small Llama trained by the Hugging Face Trainer, alone or under torchrun (FSDP2), as its users write it."""
import os
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

SEQUENCE, VOCABULARY = 256, 4096


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main():
    config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, use_cache=False)
    model = AutoModelForCausalLM.from_config(config)
    sharding = {}
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        sharding = {"fsdp": True, "fsdp_config": {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                                                  "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, max_steps=3, per_device_train_batch_size=2, bf16=True, report_to=[],
                                      gradient_checkpointing="checkpointing" in sys.argv[1:], save_strategy="no",
                                      disable_tqdm=True, logging_strategy="no", **sharding)
        Trainer(model=model, args=arguments, train_dataset=Tokens()).train()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


if __name__ == "__main__":
    main()
