"""Seconds of a training step of transformers' Llama in a plain loop with fused AdamW, eager and compiled. Nothing else may run on the GPU.

speed.py [--seconds N]: prints one JSON object a line.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time

SEQUENCE = 4096
SHAPES = {
    "llama-3.2-1b": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "tie_word_embeddings": True},
    "llama-3.1-8b": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "tie_word_embeddings": False},
}


@dataclasses.dataclass
class Case:
    shape: str
    batch: int
    precision: str = "bf16-pure"  # or bf16-mixed: float32 weights under autocast
    checkpointing: str = "none"
    compiled: bool = False
    layers: int = 0  # 0: all


SMALL, LARGE = SHAPES
# Each list is a process: what is compiled has one of its own.
GROUPS = [
    [Case(SMALL, 1), Case(SMALL, 2), Case(SMALL, 2, "bf16-mixed"), Case(SMALL, 2, checkpointing="full"), Case(LARGE, 1), Case(LARGE, 1, checkpointing="full"), Case(LARGE, 2, checkpointing="full"), Case(SMALL, 1, "bf16-mixed"),
     Case(SMALL, 2, "bf16-mixed", "full"), Case(LARGE, 1, "bf16-mixed", layers=16)],
    [Case(SMALL, 2, compiled=True)],
    [Case(LARGE, 1, compiled=True)],
    [Case(SMALL, 2, "bf16-mixed", compiled=True)],
]


def measured(case, warm, steps):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    shape = dict(SHAPES[case.shape])
    shape["num_hidden_layers"] = case.layers or shape["num_hidden_layers"]
    config = LlamaConfig(vocab_size=128256, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0, use_cache=False, attn_implementation="sdpa", **shape)
    is_pure = case.precision == "bf16-pure"
    torch.set_default_dtype(torch.bfloat16 if is_pure else torch.float32)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.train()
    if case.checkpointing == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1, fused=True)
    run = torch.compile(model) if case.compiled else model
    ids = torch.randint(0, 128256, (case.batch, SEQUENCE), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for _ in range(warm + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=not is_pure):
            loss = run(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(round(loss.item(), 4))
    median = statistics.median(seconds[warm:])
    return {"step_seconds": round(median, 5), "tokens_per_second": round(case.batch * SEQUENCE / median, 1), "all_seconds": [round(s, 4) for s in seconds], "losses": losses[::4],
            "parameters": sum(p.numel() for p in model.parameters()), "peak_allocated": torch.cuda.max_memory_allocated(), "peak_reserved": torch.cuda.max_memory_reserved()}


def play(group, warm, steps):
    import gc
    import torch
    for case in GROUPS[group]:
        begin = time.monotonic()
        try:
            row = measured(case, warm, steps)
        except Exception as error:  # pylint: disable=broad-exception-caught
            row = {"error": repr(error)[:1500]}
        gc.collect()
        torch.cuda.empty_cache()
        print(json.dumps({"by": "pytorch", "sequence": SEQUENCE, **dataclasses.asdict(case), **row, "wall_seconds": round(time.monotonic() - begin, 1)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", type=int)
    parser.add_argument("--groups", type=int, nargs="*", default=range(len(GROUPS)))
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--warm", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    if options.group is not None:
        play(options.group, options.warm, options.steps)
        return
    begin = time.monotonic()
    for group in options.groups:
        left = options.seconds - (time.monotonic() - begin)
        if left < 10:
            print(json.dumps({"error": f"not begun: {GROUPS[group]}"}), flush=True)
            continue
        try:  # its lines come as they are printed
            words = [sys.executable, os.path.abspath(__file__), "--group", str(group), "--warm", str(options.warm), "--steps", str(options.steps)]
            subprocess.run(words, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            print(json.dumps({"error": f"ended after {left:.0f} s: {GROUPS[group]}"}), flush=True)


if __name__ == "__main__":
    main()
