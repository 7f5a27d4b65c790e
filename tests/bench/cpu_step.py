"""Training steps on CPU: the engine against PyTorch eager, in turns on one machine, for fp32 and bf16, two sequence lengths
and one and two threads. Prints seconds per step and the median of the paired ratios (below 1: the engine is faster), of
wall-clock time and of CPU time, which another process on the machine disturbs less. Figures, not a test.

PyTorch: transformers' own model class with scaled-dot-product attention, fused AdamW, gradient clipping. bf16 is bf16-mixed
on one side and autocast over fp32 weights on the other: both keep fp32 weights and multiply in bf16.

    VRAMFIT_BIN_DIR=build/release/bin .venv/bin/python tests/bench/cpu_step.py [PAIRS [PRECISION [SEQUENCE [THREADS]]]]"""
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "oracle"))
import reference  # noqa: E402

# The widths of SmolLM2-135M; a fifth of its layers and a sixth of its vocabulary, so head and layers keep their shares.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 8192, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu",
}
STEPS = 3  # timed ones, after a first that isn't


class Eager:
    def __init__(self, config, precision, sequence, threads):
        torch.set_num_threads(threads)
        self.model = reference.build(config, attention="sdpa")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.ids = torch.randint(0, CONFIG["vocab_size"], (1, sequence))
        self.autocast = torch.autocast("cpu", torch.bfloat16) if precision != "fp32" else contextlib.nullcontext()
        self.step()

    def step(self):
        with self.autocast:
            logits = self.model(input_ids=self.ids).logits
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, CONFIG["vocab_size"]).float(), self.ids[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def measure(self):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            self.step()
        return (time.perf_counter() - wall) / STEPS, (time.process_time() - cpu) / STEPS


class Engine:
    def __init__(self, config, precision, sequence, threads):
        self.output = str(pathlib.Path(config).parent / "run.json")
        self.command = [
            str(pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit")), "run", config, "--gpus", "1xcpu-8GiB", "--precision", precision,
            "--seq-len", str(sequence), "--micro-batch", "1", "--threads", str(threads), "--checkpointing", "none", "--loss", "full", "-o", self.output,
        ]

    def run(self, steps):
        """CPU seconds of a whole run, and the seconds of its steps."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*self.command, "--steps", str(steps)], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = json.loads(pathlib.Path(self.output).read_text(encoding="utf-8"))
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, record["step_seconds"]

    def measure(self):
        short, _ = self.run(1)
        cpu, seconds = self.run(1 + STEPS)
        return statistics.mean(seconds[1:]), (cpu - short) / STEPS


def compare(config, cell, pairs):
    sides = {"engine": Engine(config, *cell), "eager": Eager(config, *cell)}
    measured = {name: [] for name in sides}
    for pair in range(pairs):
        for name in sorted(sides, reverse=pair % 2 == 1):
            measured[name].append(sides[name].measure())
    row = []
    for kind in (0, 1):  # wall clock, CPU
        engine, eager = ([m[kind] for m in measured[name]] for name in ("engine", "eager"))
        row += [statistics.median(engine), statistics.median(eager), statistics.median(a / b for a, b in zip(engine, eager))]
    return row


def main():
    given = sys.argv[1:] + [None] * 4
    pairs = int(given[0] or 5)
    with tempfile.TemporaryDirectory(prefix="vramfit-bench-") as directory:
        config = str(pathlib.Path(directory, "config.json"))
        pathlib.Path(config).write_text(json.dumps(CONFIG), encoding="utf-8")
        print("| precision | sequence | threads | engine, s | PyTorch, s | ratio | engine, CPU s | PyTorch, CPU s | ratio |\n" + "|-" * 9 + "|")
        for precision in [given[1]] if given[1] else ["fp32", "bf16-mixed"]:
            for sequence in [int(given[2])] if given[2] else [256, 1024]:
                for threads in [int(given[3])] if given[3] else [1, 2]:
                    figures = " | ".join(f"{value:.2f}" for value in compare(config, (precision, sequence, threads), pairs))
                    print(f"| {precision} | {sequence} | {threads} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
