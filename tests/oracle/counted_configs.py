"""The families that model_specs counts without a graph: keys to draw, like model_configs.FAMILIES."""

SIZES = {
    "vocab_size": [160, 311],
    "hidden_size": [48, 64, 96],
    "intermediate_size": [80, 112],
    "num_hidden_layers": [1, 2, 5],
    "num_attention_heads": [4, 8],
    "max_position_embeddings": [64, 128],
    "tie_word_embeddings": [True, False],
}
GROUPED = {**SIZES, "num_key_value_heads": [1, 2, 4], "head_dim": [16, 24]}
BIAS = {"attention_bias": [True, False]}
SPARSE = {
    "num_experts": [4, 6],
    "num_experts_per_tok": [2],
    "moe_intermediate_size": [24, 40],
    "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [0], [1, 2], None],
}
LATENT = {
    **SIZES,
    **BIAS,
    "moe_intermediate_size": [24, 40],
    "n_shared_experts": [1, 2],
    "n_routed_experts": [8, 16],
    "n_group": [2, 4],
    "topk_group": [1, 2],
    "num_experts_per_tok": [2],
    "q_lora_rank": [24, None],
    "kv_lora_rank": [16, 32],
    "qk_nope_head_dim": [8, 16],
    "qk_rope_head_dim": [4, 8],
    "v_head_dim": [8, 16],
    "first_k_dense_replace": [0, 1, 3],
}

COUNTED = {
    "deepseek_v2": (["DeepseekV2ForCausalLM", "DeepseekV2Model"], {**LATENT, "mlp_bias": [True, False]}),
    "deepseek_v3": (["DeepseekV3ForCausalLM", "DeepseekV3Model"], LATENT),
    "gpt_neox": (
        ["GPTNeoXForCausalLM", "GPTNeoXModel"],
        {**SIZES, **BIAS, "rotary_pct": [0.25, 0.5, 1.0]},
    ),
    "gpt_oss": (
        ["GptOssForCausalLM", "GptOssModel"],
        {**GROUPED, **BIAS, "num_local_experts": [2, 4], "num_experts_per_tok": [2]},
    ),
    "mixtral": (
        ["MixtralForCausalLM", "MixtralModel"],
        {**GROUPED, "num_local_experts": [2, 4], "num_experts_per_tok": [2]},
    ),
    "opt": (
        ["OPTForCausalLM", "OPTModel"],
        {
            **{key: values for key, values in SIZES.items() if key != "intermediate_size"},
            "ffn_dim": [80, 112],
            "word_embed_proj_dim": [24, None],
            "do_layer_norm_before": [True, False],
            "_remove_final_layer_norm": [True, False],
            "enable_bias": [True, False],
            "layer_norm_elementwise_affine": [True, False],
        },
    ),
    "qwen2_moe": (
        ["Qwen2MoeForCausalLM", "Qwen2MoeModel"],
        {**GROUPED, **SPARSE, "shared_expert_intermediate_size": [32, 56], "qkv_bias": [True, False]},
    ),
    "qwen3_moe": (["Qwen3MoeForCausalLM", "Qwen3MoeModel"], {**GROUPED, **BIAS, **SPARSE}),
    "t5": (
        ["T5ForConditionalGeneration", "T5Model"],
        {
            "vocab_size": [160, 311],
            "d_model": [48, 64],
            "d_kv": [8, 16],
            "d_ff": [80, 112],
            "num_layers": [1, 2, 5],
            "num_decoder_layers": [1, 3, None],
            "num_heads": [2, 4],
            "relative_attention_num_buckets": [8, 32],
            "feed_forward_proj": ["relu", "gated-gelu", "gated-silu"],
            "tie_word_embeddings": [True, False],
        },
    ),
}

# Keys that a drawn configuration always has.
REQUIRED = {"num_heads", "num_layers", "d_model", "num_local_experts", "num_experts", "n_routed_experts", "n_group"}
REQUIRED |= {"topk_group"}
