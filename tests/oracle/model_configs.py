"""config.json files for the comparison with transformers: written ones, and ones drawn from a seed.

Each family has the keys that change its parameters, with small values to draw from. Omitting a key is one of the choices,
so that every family's own defaults are met too.
"""

import random

import counted_configs

# key: values to draw from; a key that isn't REQUIRED is also left out.
DECODER = {
    "vocab_size": [160, 311, 1024],
    "hidden_size": [48, 64, 96],
    "intermediate_size": [80, 112],
    "num_hidden_layers": [1, 2, 5],
    "num_attention_heads": [4, 8],
    "num_key_value_heads": [1, 2, 4],
    "head_dim": [16, 24],
    "max_position_embeddings": [64, 128],
    "tie_word_embeddings": [True, False],
    "attention_bias": [True, False],
}

# model_type: (classes, keys to draw). The first class is what a config.json without `architectures` means.
FAMILIES = {
    "bert": (
        ["BertForMaskedLM", "BertModel", "BertForPreTraining"],
        {
            "vocab_size": [160, 311],
            "hidden_size": [48, 64],
            "intermediate_size": [80, 112],
            "num_hidden_layers": [1, 2, 5],
            "num_attention_heads": [2, 4],
            "max_position_embeddings": [64, 128],
            "type_vocab_size": [1, 2, 5],
            "tie_word_embeddings": [True, False],
        },
    ),
    "gemma": (["GemmaForCausalLM", "GemmaModel"], DECODER),
    "gemma2": (["Gemma2ForCausalLM", "Gemma2Model"], DECODER),
    "gemma3_text": (["Gemma3ForCausalLM", "Gemma3TextModel"], DECODER),
    "gpt2": (
        ["GPT2LMHeadModel", "GPT2Model"],
        {
            "vocab_size": [160, 311],
            "n_embd": [48, 64],
            "n_inner": [80, 112, None],
            "n_layer": [1, 2, 5],
            "n_head": [2, 4],
            "n_positions": [64, 128],
            "tie_word_embeddings": [True, False],
        },
    ),
    "granite": (["GraniteForCausalLM", "GraniteModel"], {**DECODER, "mlp_bias": [True, False]}),
    "llama": (["LlamaForCausalLM", "LlamaModel"], {**DECODER, "mlp_bias": [True, False]}),
    "mistral": (["MistralForCausalLM", "MistralModel"], DECODER),
    "phi3": (["Phi3ForCausalLM", "Phi3Model"], {**DECODER, "partial_rotary_factor": [0.5, 1.0]}),
    "qwen2": (["Qwen2ForCausalLM", "Qwen2Model"], DECODER),
    "qwen3": (["Qwen3ForCausalLM", "Qwen3Model"], DECODER),
    **counted_configs.COUNTED,
}

# Keys that a drawn configuration always has: a default of theirs would make a model too large to list quickly, or one
# that doesn't go with the drawn sizes.
REQUIRED = {
    "vocab_size",
    "hidden_size",
    "num_key_value_heads",  # the default of some is more than the heads drawn here
    "num_attention_heads",
    "num_hidden_layers",
    "n_embd",
    "n_head",
    "n_layer",
    *counted_configs.REQUIRED,
}
# What transformers itself needs beside the drawn keys (token ids within the vocabulary).
EXTRA = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def drawn(model_type, rng):
    """One random configuration of a family."""
    classes, keys = FAMILIES[model_type]
    config = {"model_type": model_type, **EXTRA}
    if rng.random() < 0.8:
        config["architectures"] = [rng.choice(classes)]
    for key, values in keys.items():
        if key in REQUIRED or rng.random() < 0.7:
            config[key] = rng.choice(values)
    return config


def configurations(seed, draws):
    """(label, configuration) of every family: its defaults, with and without a head, and `draws` random ones."""
    rng = random.Random(seed)
    for model_type, (classes, _) in FAMILIES.items():
        yield f"{model_type} defaults", {"model_type": model_type}
        yield f"{model_type} defaults, {classes[1]}", {"model_type": model_type, "architectures": [classes[1]]}
        for tied in (True, False):
            yield f"{model_type} tied {tied}", {"model_type": model_type, "tie_word_embeddings": tied}
        for i in range(draws):
            yield f"{model_type} draw {i}", drawn(model_type, rng)
