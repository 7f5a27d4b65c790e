"""Two steps of Llama-3-8B under FSDP1 with its layers checkpointed, for docs/seeds.md.

    fsdp1_ends.py wrapped        embedding and output layer are units of their own
    fsdp1_ends.py whole          they belong to the root unit
    fsdp1_ends.py checkpointed   as wrapped, and the embedding is checkpointed too
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import CustomPolicy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

TOKENS = 512

form = sys.argv[1]
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                     vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0, use_cache=False)
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
ends = () if form == "whole" else (model.model.embed_tokens, model.lm_head)
model = FullyShardedDataParallel(
    model, device_id=rank, use_orig_params=True,
    auto_wrap_policy=CustomPolicy(lambda module: isinstance(module, LlamaDecoderLayer) or module in ends),
    param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False))
checkpointed = (LlamaDecoderLayer, nn.Embedding) if form == "checkpointed" else LlamaDecoderLayer
apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda module: isinstance(module, checkpointed))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for _ in range(2):
    tokens = torch.randint(config.vocab_size, (1, TOKENS), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
