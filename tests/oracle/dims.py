"""Sizes of a model with Llama's blocks; doesn't import torch, so reading a case doesn't need it."""

import dataclasses
import typing

ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "phi3": "Phi3",
                 "gemma": "Gemma", "gemma2": "Gemma2", "gemma2_uncapped": "Gemma2", "gemma3_text": "Gemma3", "granite": "Granite", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "gpt_oss": "GptOss"}


@dataclasses.dataclass
class Dims:
    """Llama 3 8B."""

    hidden: int = 4096
    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    ffn: int = 14336
    vocabulary: int = 128256
    sequence: int = 8192
    # Of other families: FamilyDims.
    window: typing.ClassVar = None
    rotated: typing.ClassVar = 1.0
    experts: typing.ClassVar = 8
    chosen: typing.ClassVar = 2
    dense: typing.ClassVar = ()
    normalized: typing.ClassVar = True
    dropouts: typing.ClassVar = (0.1, 0.1, 0.1)
    activation: typing.ClassVar = "gelu_new"
    positions: typing.ClassVar = 0

    @property
    def head_dim(self):
        return self.hidden // self.heads

    def config(self, family="llama", tied=False):
        """What config.json of transformers says."""
        if family == "gpt2":
            return self.gpt2_config(tied)
        if family == "bert":
            return self.bert_config()
        other = {"llama": {"attention_bias": False, "mlp_bias": False}, "mistral": {"sliding_window": self.window}, "qwen2": {"use_sliding_window": False},
                 "qwen3": {"use_sliding_window": False, "head_dim": self.head_dim, "attention_bias": False},
                 "phi3": {"sliding_window": self.window, "partial_rotary_factor": self.rotated, "pad_token_id": 0},
                 "granite": {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0078125, "logits_scaling": 8.0}}
        other["mixtral"] = {"sliding_window": self.window, "num_local_experts": self.experts, "num_experts_per_tok": self.chosen}
        other["gpt_oss"] = {"sliding_window": self.window or 128, "head_dim": self.head_dim, "num_local_experts": self.experts, "num_experts_per_tok": self.chosen}
        other["qwen3_moe"] = {"use_sliding_window": self.window is not None, "sliding_window": self.window, "head_dim": self.head_dim, "attention_bias": False, "num_experts": self.experts,
                              "num_experts_per_tok": self.chosen, "moe_intermediate_size": self.ffn // 4, "norm_topk_prob": self.normalized, "mlp_only_layers": list(self.dense)}
        for name in ("gemma", "gemma2", "gemma2_uncapped", "gemma3_text"):
            other[name] = {"head_dim": self.head_dim, "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": self.head_dim}
            if name != "gemma":
                other[name] |= {"sliding_window": self.window or 4096}
        other["gemma2_uncapped"] |= {"attn_logit_softcapping": None, "final_logit_softcapping": None}
        return {"architectures": [ARCHITECTURES[family] + "ForCausalLM"], "model_type": family.removesuffix("_uncapped"), "vocab_size": self.vocabulary,
                "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
                "max_position_embeddings": self.sequence, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                "tie_word_embeddings": tied, "hidden_act": "silu", **other[family]}

    def gpt2_config(self, tied):
        embedding, attention, hidden = self.dropouts
        return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": self.vocabulary, "n_embd": self.hidden, "n_inner": self.ffn, "n_layer": self.layers,
                "n_head": self.heads, "n_positions": self.sequence, "embd_pdrop": embedding, "attn_pdrop": attention, "resid_pdrop": hidden,
                "activation_function": self.activation, "tie_word_embeddings": tied, "bos_token_id": 0, "eos_token_id": 0}

    def bert_config(self):
        """Its embeddings are tied, and what blocks add is dropped as often as the embedding."""
        _, attention, hidden = self.dropouts
        return {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": self.vocabulary, "hidden_size": self.hidden, "intermediate_size": self.ffn,
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "max_position_embeddings": self.positions or self.sequence, "type_vocab_size": 2,
                "hidden_dropout_prob": hidden, "attention_probs_dropout_prob": attention, "hidden_act": self.activation, "pad_token_id": 0}


@dataclasses.dataclass
class FamilyDims(Dims):
    """With what only some families of transformers have."""

    window: int | None = None
    rotated: float = 1.0  # part of each head (phi3)
    experts: int = 8  # of a layer (mixtral, qwen3_moe, gpt_oss)
    chosen: int = 2  # experts of a token
    dense: tuple = ()  # layers that have none (qwen3_moe)
    normalized: bool = True  # whether a token's scores add up to 1 (qwen3_moe)
    dropouts: tuple = (0.1, 0.1, 0.1)  # of the embedding, attention's probabilities and the hidden states (gpt2; bert)
    activation: str = "gelu_new"  # gpt2, bert
    positions: int = 0  # rows of their table (bert); 0: as many as tokens
