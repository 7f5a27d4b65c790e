"""LoRA by PEFT, on a bf16 base ("lora") or on one quantized by bitsandbytes to NF4 ("qlora")."""
import sys

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, LlamaConfig

SEQUENCE, VOCABULARY = 256, 4096


def base_model(quantized):
    config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    if not quantized:
        return model.cuda()
    import bitsandbytes
    for layer in model.model.layers:
        for holder in (layer.self_attn, layer.mlp):
            for name, linear in list(holder.named_children()):
                if isinstance(linear, torch.nn.Linear):
                    packed = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=False,
                                                        compute_dtype=torch.bfloat16, quant_type="nf4")
                    packed.load_state_dict(linear.state_dict())
                    setattr(holder, name, packed)
    model.is_loaded_in_4bit = True
    return prepare_model_for_kbit_training(model.cuda())


def main():
    model = base_model(quantized=sys.argv[1] == "qlora")
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    for step in range(3):
        ids = torch.randint(0, VOCABULARY, (2, SEQUENCE), generator=torch.Generator().manual_seed(step)).cuda()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), f"resident {torch.cuda.memory_stats()['requested_bytes.all.current']}")


if __name__ == "__main__":
    main()
