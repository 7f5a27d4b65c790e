"""Reserved memory of jobs of transformers' Trainer, estimated and rehearsed: configs/residuals/rehearsed.json (residuals.py rehearse).

Events of a step are equal (hf_trainer/events_test.py), so what differs follows from loading, which leaves other blocks behind, and with the native allocator from
the order of addresses, of which an estimate takes the worst.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER / "hf_trainer"))  # torchtitan_like has an events_test, too
from events_test import PROGRAMS, QLORA, SMALL, Case, config_file, finished, output_of, script  # noqa: E402  which puts the folder above on the path
import vramfit  # noqa: E402

ALLOCATORS = {"native": "expandable_segments:False", "expandable": "expandable_segments:True"}
SHORT = {**SMALL, "sequence": 1024}
CASES = {
    "all weights": Case(**SHORT),
    "all weights, checkpointed": Case(**SHORT, checkpointing="full"),
    "bf16-pure, two micro-batches": Case(**SHORT, precision="bf16-pure", accumulation=2, tied=True),
    "AdamW of 8 bits": Case(**SHORT, optimizer="adamw-8bit"),
    "LoRA": Case(**SHORT, lora_rank=16),
    "LoRA, checkpointed": Case(**SHORT, lora_rank=16, checkpointing="full"),
    "QLoRA": Case(**SHORT, **QLORA),
    "QLoRA, checkpointed": Case(**SHORT, **QLORA, checkpointing="full"),
    "Qwen3 with experts": Case(**SHORT, family="qwen3_moe"),
    "DDP": Case(**SHORT, ranks=2, sharding="no-shard"),
    "DDP, checkpointed": Case(**SHORT, ranks=2, sharding="no-shard", checkpointing="full", tied=True),
    "DDP with LoRA": Case(**SHORT, ranks=4, sharding="no-shard", lora_rank=16),
    "FSDP2": Case(**SHORT, ranks=4),
    "FSDP2, checkpointed": Case(**SHORT, ranks=8, checkpointing="full", tied=True),
    "FSDP2, gathered once": Case(**SHORT, ranks=2, sharding="shard-grad-op", accumulation=2),
    "FSDP2 with LoRA": Case(**SHORT, ranks=4, lora_rank=16),
}


def estimated(case, allocator):
    with tempfile.TemporaryDirectory() as folder:
        fields = {**case.job(), "allocator": allocator}
        words = [word for name, value in fields.items() for word in ("--" + name.replace("_", "-"), value)]
        answer = json.loads(output_of(finished([PROGRAMS / "vramfit", "estimate", config_file(case, folder), "--gpus", case.cluster(), *words, "--json"])))
        return answer["ranks"][answer["worst"]]["peak_reserved_bytes"]


def rehearsed(case, warm):
    """None if the Trainer fails."""
    with tempfile.TemporaryDirectory() as folder:
        events = pathlib.Path(folder, "events")
        found = warm.rehearse(script(case, folder, events), gpus=case.cluster(), ranks=0)
        return found.ranks[0].peak_reserved_bytes if events.exists() else None


def rows(allocator):
    os.environ |= {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator], "VRAMFIT_PROGRAM": str(PROGRAMS / "vramfit")}
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "peft", "bitsandbytes"))
    with vramfit.Warm("torch", "transformers", "peft", "bitsandbytes", "accelerate") as warm:
        for name, case in CASES.items():
            predicted, observed = estimated(case, allocator), rehearsed(case, warm)
            assert observed is not None, f"{name}: the Trainer fails"
            print(f"{name}, {allocator}: estimated {predicted}, rehearsed {observed}: {100 * (observed / predicted - 1):+.2f} %", flush=True)
            yield {"runtime": case.runtime().replace("pytorch-ddp", "pytorch"), **({"qlora": True} if case.quantization != "none" else {}), "case": f"{name}, {allocator}", "predicted_bytes": predicted, "observed_bytes": observed,
                   "source": f"rehearsed {datetime.date.today().isoformat()} with {versions}",
                   "of": {field: value for field, value in dataclasses.asdict(case).items() if value != getattr(Case(), field, None)}}


def write(path, text_of):
    document = json.loads(path.read_text(encoding="utf-8"))
    others = [case for case in document["cases"] if not case["source"].startswith("rehearsed ")]  # rows of docs/accuracy.md, by hand
    path.write_text(text_of(document, [row for allocator in ALLOCATORS for row in rows(allocator)] + others), encoding="utf-8")
