"""Other models of transformers: what they generate, see and hear. Usage: families.py NAME"""
import sys

import numpy
import torch
from transformers import (BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration,
                          T5Config, T5ForConditionalGeneration, Wav2Vec2Config, Wav2Vec2ForCTC, WhisperConfig, WhisperForConditionalGeneration)

from tiny import on_card, say_held

STEPS, VOCABULARY = 3, 4096


def train(model, batches):
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    del batch
    say_held()


def draw(step, shape, below=VOCABULARY):
    return torch.randint(3, below, shape, generator=torch.Generator().manual_seed(step)).cuda()


def llama():
    config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=VOCABULARY,
                         max_position_embeddings=512, eos_token_id=2, pad_token_id=0)
    return on_card(LlamaForCausalLM, config).bfloat16()


def generate_greedy():
    model = llama().eval()
    made = model.generate(draw(0, (4, 16)), max_new_tokens=48, do_sample=False)
    print("length", made.shape[1])
    say_held()


def generate_sampled():
    model = llama().eval()
    made = model.generate(draw(0, (4, 16)), max_new_tokens=48, do_sample=True, top_k=50, top_p=0.9)
    print("length", made.shape[1])
    say_held()


def generate_beams():
    model = llama().eval()
    made = model.generate(draw(0, (2, 16)), max_new_tokens=24, num_beams=4, do_sample=False)
    print("length", made.shape[1])
    say_held()


def padded_llama():
    """Rows padded on the left, as the mask says."""
    model = llama()
    batches = []
    for step in range(STEPS):
        ids, lengths = draw(step, (4, 256)), torch.tensor([256, 200, 131, 64]).cuda()
        mask = torch.arange(255, -1, -1, device="cuda")[None] < lengths[:, None]
        batches.append({"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)})
    train(model, batches)


def qwen_vision():
    """Two images a row, of different sizes, whose places in the text follow from ids."""
    config = Qwen2_5_VLConfig(
        text_config={"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "vocab_size": VOCABULARY, "max_position_embeddings": 1024,
                     "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 1e6}},
        vision_config={"depth": 2, "hidden_size": 256, "intermediate_size": 512, "num_heads": 4, "out_hidden_size": 256, "fullatt_block_indexes": [1]},
        image_token_id=5, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8)
    model = on_card(Qwen2_5_VLForConditionalGeneration, config)
    optimizer = torch.optim.AdamW(model.parameters())
    grids = torch.tensor([[1, 8, 12], [1, 16, 16]])
    images = [int(grid.prod()) // 4 for grid in grids]
    for step in range(STEPS):
        row = [9, 9]
        for count in images:
            row += [7] + [5] * count + [8]
        row += [9] * 20
        ids = torch.tensor([row]).cuda()
        pixels = torch.randn(int(grids.prod(1).sum()), 3 * 2 * 14 * 14, device="cuda")
        kinds = (ids == 5).int()
        model(input_ids=ids, labels=ids, pixel_values=pixels, image_grid_thw=grids.cuda(), mm_token_type_ids=kinds).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("rows", ids.shape[1])
    say_held()


def whisper():
    config = WhisperConfig(d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=1024,
                           decoder_ffn_dim=1024, vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    model = on_card(WhisperForConditionalGeneration, config)
    train(model, ({"input_features": torch.randn(2, 80, 3000, device="cuda"), "labels": draw(step, (2, 64))} for step in range(STEPS)))


def wav2vec2():
    """The host draws which layers are left out and which time steps are masked, from seeds; losses are CTC's, whose lengths come from the labels."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    config = Wav2Vec2Config(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024, vocab_size=64, conv_dim=(128,) * 7,
                            num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4)
    model = on_card(Wav2Vec2ForCTC, config).cuda()  # what replaces masked steps is made on the host
    train(model, ({"input_values": torch.randn(2, 16000, device="cuda"), "labels": draw(step, (2, 20), 64)} for step in range(STEPS)))


def t5():
    config = T5Config(d_model=256, d_kv=64, d_ff=1024, num_layers=2, num_heads=4, vocab_size=VOCABULARY, decoder_start_token_id=0)
    model = on_card(T5ForConditionalGeneration, config)
    train(model, ({"input_ids": draw(step, (4, 128)), "labels": draw(step + 50, (4, 64))} for step in range(STEPS)))


def bert():
    config = BertConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024, vocab_size=VOCABULARY, num_labels=3)
    model = on_card(BertForSequenceClassification, config)
    mask = (torch.arange(128)[None] < torch.tensor([128, 90, 40, 12])[:, None]).long().cuda()
    train(model, ({"input_ids": draw(step, (4, 128)), "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 1]).cuda()} for step in range(STEPS)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
