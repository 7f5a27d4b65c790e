"""Every allocation of a rehearsed run of transformers' Trainer against the counted ledger: size, stream, and what was freed since the one before.

Loading is left out: the Trainer moves a model that was made on the host. Arguments: `ci` or `full`.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))
from compare_events import by_step, first_difference  # noqa: E402

PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin"))
STEPS = 3


@dataclasses.dataclass
class Case:
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    ffn: int = 192
    vocabulary: int = 2050
    tied: bool = False
    sequence: int = 128
    batch: int = 1
    accumulation: int = 1
    precision: str = "bf16-mixed"
    checkpointing: str = "none"
    optimizer: str = "fused"
    card: str = "H100-80GB"
    family: str = "llama"

    def config(self):
        architecture = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[self.family]
        other = {"llama": {"attention_bias": False, "mlp_bias": False}, "mistral": {"sliding_window": None}, "qwen2": {"use_sliding_window": False},
                 "qwen3": {"use_sliding_window": False, "head_dim": self.hidden // self.heads, "attention_bias": False}}
        return {"architectures": [architecture + "ForCausalLM"], "model_type": self.family, "vocab_size": self.vocabulary,
                "hidden_size": self.hidden, "intermediate_size": self.ffn, "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
                "max_position_embeddings": self.sequence, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                "tie_word_embeddings": self.tied, "hidden_act": "silu", **other[self.family]}

    def job(self):
        return {"runtime": "pytorch", "modeling": "transformers", "precision": self.precision,
                "attention": "auto" if self.precision == "fp32" else "flash", "allocator": "expandable", "seq_len": self.sequence,
                "micro_batch": self.batch, "grad_accum": self.accumulation, "checkpointing": self.checkpointing, "optimizer": f"adamw:{self.optimizer}"}


SMALL = {"hidden": 1024, "layers": 3, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 16384, "sequence": 2048}

CASES = {
    "ci": [
        Case(checkpointing="full"),
        Case(family="qwen2", tied=True, precision="bf16-pure", accumulation=3, optimizer="foreach", kv_heads=1, batch=2),
        Case(family="qwen3", precision="fp32", kv_heads=4, batch=3, tied=True),
    ],
    "full": [
        *(Case(**SMALL, precision=precision, tied=tied, accumulation=accumulation)
          for precision in ("bf16-mixed", "bf16-pure") for tied in (False, True) for accumulation in (1, 3)),
        *(Case(**{**SMALL, "kv_heads": 16}, precision="fp32", tied=tied) for tied in (False, True)),
        *(Case(**SMALL, precision=precision, tied=tied, checkpointing="full") for precision in ("bf16-mixed", "bf16-pure") for tied in (False, True)),
        Case(**{**SMALL, "kv_heads": 16}, precision="fp32", checkpointing="full", accumulation=2),
        *(Case(**SMALL, family=family, precision=precision, tied=True, checkpointing=checkpointing)
          for family, checkpointing in (("qwen2", "full"), ("qwen2", "none"), ("qwen3", "full"), ("qwen3", "none"), ("mistral", "full")) for precision in ("bf16-mixed", "bf16-pure")),
        Case(**SMALL, batch=4),
        Case(**{**SMALL, "sequence": 1000}, batch=3, optimizer="foreach"),
        Case(**SMALL, card="RTX4090"),
        Case(hidden=128, ffn=200, sequence=4096, batch=33, checkpointing="full"),  # sums over tokens by several thread blocks
        Case(**{**SMALL, "hidden": 1040, "heads": 13, "kv_heads": 1, "ffn": 1111, "vocabulary": 5003, "sequence": 4100}),
    ],
}


def run(words):
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, timeout=500, check=False,
                          env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    if done.returncode != 0:
        raise SystemExit((done.stdout + done.stderr)[-3000:])
    return done.stdout


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def rehearsed_events(case, config, folder):
    path = pathlib.Path(folder, "events")
    run([PROGRAMS / "vramfit", "rehearse", "--gpus", f"1x{case.card}", "--", sys.executable, FOLDER / "train.py", "--config", config,
         "--batch", case.batch, "--sequence", case.sequence, "--accumulation", case.accumulation, "--precision", case.precision,
         "--checkpointing", case.checkpointing, "--optimizer", case.optimizer, "--steps", STEPS, "--events", path])
    return lines_of(path.read_text(encoding="utf-8"))


def counted_events(case, config):
    fields = [f"{name}={value}" for name, value in case.job().items()]
    return lines_of(run([PROGRAMS / "dump_events", config, f"1x{case.card}", STEPS, *fields]))


def main(which):
    failures = 0
    cases = CASES[which]
    for case in cases:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "config.json")
            config.write_text(json.dumps(case.config()), encoding="utf-8")
            rehearsed = by_step(rehearsed_events(case, config, folder))
            counted = by_step(counted_events(case, config))
            difference = first_difference(rehearsed, counted)
            if case is cases[0]:
                other = by_step(counted_events(dataclasses.replace(case, precision="bf16-pure"), config))
                assert first_difference(rehearsed, other) is not None, "another job's events pass for these"
        failures += difference is not None
        print(f"{case}\n  {difference or 'equal'}: {sum(map(len, counted.values()))} allocations, {time.monotonic() - start:.1f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
