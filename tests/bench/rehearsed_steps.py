"""How long the host takes for steps of Llama 3.1 8B's shape in eager mode, on phantom GPUs (docs/phantom.md#speed).
Usage: vramfit rehearse --gpus 1xH200-141GB [--set values=unknown] -- PYTHON rehearsed_steps.py STEPS"""
import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    torch.set_default_device("cuda")
    shape = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
    model = LlamaForCausalLM(shape).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(0, 1000, (1, 1024))
    times = []
    for _ in range(int(sys.argv[1])):
        processor, wall = time.process_time(), time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append((time.process_time() - processor, time.perf_counter() - wall))
    best, first = min(times), times[0]
    print(f"processor seconds of a step: first {first[0]:.3f}, best {best[0]:.4f}; wall clock: first {first[1]:.3f}, best {min(wall for _, wall in times):.4f}")


if __name__ == "__main__":
    main()
