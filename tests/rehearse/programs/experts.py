"""Mixtures of experts of transformers. Usage: experts.py FAMILY EXPERTS_IMPLEMENTATION"""
import sys

import torch
from transformers import AutoModelForCausalLM, DeepseekV2Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig

from tiny import say_held

VOCABULARY, WIDTH, LAYERS, SEQUENCE, BATCH = 4096, 512, 2, 512, 4
COMMON = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 1024,
          "use_cache": False, "pad_token_id": 0}
FAMILIES = {
    "mixtral": lambda: MixtralConfig(**COMMON, intermediate_size=1024, num_key_value_heads=8, num_local_experts=8, num_experts_per_tok=2),
    "qwen3_moe": lambda: Qwen3MoeConfig(**COMMON, intermediate_size=1024, moe_intermediate_size=256, num_key_value_heads=8, head_dim=64,
                                        num_experts=32, num_experts_per_tok=4),
    "deepseek_v2": lambda: DeepseekV2Config(**COMMON, intermediate_size=1024, moe_intermediate_size=256, num_key_value_heads=8, n_routed_experts=16,
                                            n_shared_experts=1, num_experts_per_tok=4, first_k_dense_replace=0, kv_lora_rank=128, q_lora_rank=None,
                                            qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64, n_group=1, topk_group=1),
    "gpt_oss": lambda: GptOssConfig(**COMMON, intermediate_size=1024, num_key_value_heads=8, head_dim=64, num_local_experts=8, num_experts_per_tok=2,
                                    layer_types=["full_attention"] * LAYERS),
}


def main():
    family, implementation = sys.argv[1:]
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.bfloat16, experts_implementation=implementation)
    optimizer = torch.optim.AdamW(model.parameters())
    print("parameters", sum(p.numel() for p in model.parameters()))
    for step in range(3):
        ids = torch.randint(1, VOCABULARY, (BATCH, SEQUENCE), generator=torch.Generator().manual_seed(step)).cuda()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    say_held()


if __name__ == "__main__":
    main()
