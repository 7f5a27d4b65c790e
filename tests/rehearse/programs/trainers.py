"""transformers' Trainer and TRL's, on a small Llama. Usage: trainers.py NAME"""
import os
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast, Trainer, TrainingArguments

from tiny import say_held

SEQUENCE, VOCABULARY, STEPS = 256, 4096, 2
FOLDER = tempfile.mkdtemp()
BASE = {"output_dir": FOLDER, "max_steps": STEPS, "report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_strategy": "no"}


def config():
    return LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=VOCABULARY,
                       max_position_embeddings=1024, eos_token_id=2, pad_token_id=0, bos_token_id=1)


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = {f"w{number}": number for number in range(VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="w3"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", bos_token="w1", eos_token="w2", unk_token="w3")


def words(count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return " ".join(f"w{number}" for number in torch.randint(4, VOCABULARY, (count,), generator=draw).tolist())


class Tokens(torch.utils.data.Dataset):
    def __init__(self, rows=256):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        ids = torch.randint(3, VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def plain(**more):
    arguments = TrainingArguments(**{**BASE, "per_device_train_batch_size": 2, "bf16": True, **more})
    trainer = Trainer(model=LlamaForCausalLM(config()), args=arguments, train_dataset=Tokens(), eval_dataset=more.get("eval_strategy") and Tokens())
    trainer.train()
    say_held()


def accumulation():
    plain(gradient_accumulation_steps=4, gradient_checkpointing=True)


def evaluation():
    plain(eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8, eval_accumulation_steps=4)


def auto_find_batch_size():
    """The batch of 512 rows is too large for the card."""
    arguments = TrainingArguments(**{**BASE, "per_device_train_batch_size": 512, "auto_find_batch_size": True})
    trainer = Trainer(model=LlamaForCausalLM(config()), args=arguments, train_dataset=Tokens(1024))
    trainer.train()
    say_held()


def texts(rows):
    from datasets import Dataset
    return Dataset.from_list(rows)


def sft():
    from trl import SFTConfig, SFTTrainer
    rows = texts([{"text": words(100 + number, number)} for number in range(16)])
    arguments = SFTConfig(**BASE, per_device_train_batch_size=2, max_length=128)
    trainer = SFTTrainer(model=LlamaForCausalLM(config()), args=arguments, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    say_held()


def dpo():
    from trl import DPOConfig, DPOTrainer
    rows = texts([{"prompt": words(20, number), "chosen": words(40, number + 50), "rejected": words(30, number + 90)} for number in range(16)])
    arguments = DPOConfig(**BASE, per_device_train_batch_size=2)
    trainer = DPOTrainer(model=LlamaForCausalLM(config()), ref_model=LlamaForCausalLM(config()), args=arguments, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    say_held()


def reward(completions, **_):
    return [float(len(completion)) for completion in completions]


def grpo():
    from trl import GRPOConfig, GRPOTrainer
    rows = texts([{"prompt": words(12, number)} for number in range(8)])
    arguments = GRPOConfig(**BASE, per_device_train_batch_size=4, num_generations=4, max_completion_length=24)
    trainer = GRPOTrainer(model=LlamaForCausalLM(config()), reward_funcs=reward, args=arguments, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    say_held()


def rloo():
    from trl import RLOOConfig, RLOOTrainer
    rows = texts([{"prompt": words(12, number)} for number in range(8)])
    arguments = RLOOConfig(**BASE, beta=0, per_device_train_batch_size=4, num_generations=4, max_completion_length=24)
    trainer = RLOOTrainer(model=LlamaForCausalLM(config()), reward_funcs=reward, args=arguments, train_dataset=rows, processing_class=tokenizer())
    trainer.train()
    say_held()


def ppo():
    """The policy and a model of its values are trained; a copy of the policy and a model of the reward stay as they are."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer  # up to TRL 1.12
    draw = torch.Generator().manual_seed(0)
    rows = texts([{"input_ids": torch.randint(4, VOCABULARY, (12,), generator=draw).tolist()} for _ in range(16)])
    arguments = PPOConfig(**BASE, per_device_train_batch_size=4, num_ppo_epochs=1, total_episodes=4 * STEPS, response_length=24, num_sample_generations=0)
    score = config()
    score.num_labels = 1
    trainer = PPOTrainer(args=arguments, processing_class=tokenizer(), model=LlamaForCausalLM(config()), ref_model=LlamaForCausalLM(config()), train_dataset=rows,
                         eval_dataset=rows, value_model=LlamaForSequenceClassification(score), reward_model=LlamaForSequenceClassification(score))
    trainer.train()
    say_held()


def fsdp2():
    plain(fsdp=True, fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]})


def lora():
    from peft import LoraConfig, get_peft_model
    model = get_peft_model(LlamaForCausalLM(config()).bfloat16(), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    arguments = TrainingArguments(**{**BASE, "per_device_train_batch_size": 2, "bf16": True})
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    trainer.train()
    say_held()


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    globals()[sys.argv[1]]()
