"""NeMo AutoModel's Llama, its setup of FSDP2 with weights in fp32, its loss and its clipping of gradients, as its recipe for fine-tuning calls them."""
import torch
from nemo_automodel import NeMoAutoModelForCausalLM
from nemo_automodel.components.distributed.config import DistributedSetup
from nemo_automodel.components.distributed.init_utils import initialize_distributed
from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy
from nemo_automodel.components.training.utils import scale_grads_and_clip_grad_norm
from transformers import LlamaConfig

from tiny import say_held, tokens

STEPS, ROWS, SEQUENCE = 2, 2, 256


def main():
    initialize_distributed(backend="nccl")
    setup = DistributedSetup.build("fsdp2")
    shape = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=4096,
                        max_position_embeddings=1024, tie_word_embeddings=False, architectures=["LlamaForCausalLM"])
    model = NeMoAutoModelForCausalLM.from_config(shape, dtype=torch.float32, distributed_setup=setup)
    optimizer, loss_of = torch.optim.AdamW(model.parameters(), lr=1e-5), MaskedCrossEntropy()
    model.train()
    for step in range(STEPS):
        ids = tokens(step, ROWS, SEQUENCE)
        out = model(input_ids=ids)
        loss = loss_of(getattr(out, "logits", out), ids, num_label_tokens=ids.numel())
        loss.backward()
        scale_grads_and_clip_grad_norm(1.0, [model])
        optimizer.step()
        optimizer.zero_grad()
        del ids, out, loss
    say_held()


if __name__ == "__main__":
    main()
