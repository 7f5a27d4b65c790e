"""A small GPT of Megatron-core, its local layers, tensor parallel over the ranks."""
import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from tiny import say_held

VOCABULARY, SEQUENCE, BATCH = 4096, 256, 4


def main():
    local = int(os.environ.get("LOCAL_RANK", 0))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(num_layers=4, hidden_size=512, num_attention_heads=8, ffn_hidden_size=2048, params_dtype=torch.float32,
                               tensor_model_parallel_size=dist.get_world_size(), gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
                               bias_dropout_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=SEQUENCE, position_embedding_type="rope").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    positions = torch.arange(SEQUENCE, device="cuda").expand(BATCH, -1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device="cuda").triu(1)
    for step in range(3):
        ids = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step)).cuda()
        model(ids, positions, mask, labels=ids).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("parameters", sum(p.numel() for p in model.parameters()))
    del ids, positions, mask
    say_held()


if __name__ == "__main__":
    main()
