"""Every allocation of torchtitan's own trainer, rehearsed, against the counted ledger: size, stream, and what was freed since the one before.

Load is left out, as in torchtitan_like. Arguments: a part (recorded.py). Parts that rehearse need torchtitan 0.2.2, which may be that of another Python ($VRAMFIT_RECIPES_PYTHON).
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent), str(FOLDER.parent / "torchtitan_like")]
from dims import Dims  # noqa: E402
from readings import ALLOCATORS, PROGRAMS, STEPS, run  # noqa: E402
from recorded import Comparison  # noqa: E402

LIBRARIES = ["torch", "torchtitan"]
# By what --checkpointing says; every:N is N itself.
CHECKPOINTING = {"none": ["none"], "full": ["full"], "selective": ["selective", "op"]}


@dataclasses.dataclass
class Case(Dims):
    """A job, of which `flags` has torchtitan's names."""

    batch: int = 1
    ranks: int = 4
    replicas: int = 1
    reshard: str = "default"
    checkpointing: str = "selective"
    optimizer: str = "fused"
    accumulation: int = 1
    card: str = "H100-80GB"

    def cluster(self):
        ranks = self.ranks * self.replicas
        return f"{ranks // 8}x8x{self.card}" if ranks > 8 and ranks % 8 == 0 else f"{ranks}x{self.card}"

    def job(self):
        fields = {"runtime": "pytorch-fsdp2", "modeling": "torchtitan-0.2", "attention": "auto", "wrap_embeddings": "on", "allocator": "expandable",
                  "seq_len": self.sequence, "micro_batch": self.batch, "checkpointing": self.checkpointing, "optimizer": f"adamw:{self.optimizer}",
                  "grad_accum": self.accumulation}
        if self.replicas > 1:
            fields |= {"sharding": "hybrid-shard", "mesh": f"replicate={self.replicas},shard={self.ranks}"}
        if self.reshard == "never":
            return fields | {"sharding": "hybrid-shard-zero2" if self.replicas > 1 else "shard-grad-op"}
        return fields | {"reshard": self.reshard}

    def flags(self):
        mode, *option = CHECKPOINTING.get(self.checkpointing) or ["selective", self.checkpointing.removeprefix("every:")]
        flags = {"training.local_batch_size": self.batch, "training.global_batch_size": self.batch * self.ranks * self.replicas * self.accumulation,
                 "activation_checkpoint.mode": mode, "optimizer.implementation": "for-loop" if self.optimizer == "loop" else self.optimizer,
                 "parallelism.fsdp_reshard_after_forward": self.reshard,
                 "parallelism.data_parallel_replicate_degree": self.replicas, "parallelism.data_parallel_shard_degree": self.ranks}
        if option:
            flags["activation_checkpoint.selective_ac_option"] = option[0]
        return [word for name, value in flags.items() for word in ("--" + name, str(value))]


def rehearsed_events(case):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "events")
        told = json.dumps({**dataclasses.asdict(case), "steps": STEPS, "events": str(path)})
        code, _, error = run([PROGRAMS / "vramfit", "rehearse", "--gpus", case.cluster(), "--ranks", "0", "--", sys.executable, FOLDER / "train.py", told, *case.flags()],
                             {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS["expandable"]})
        if code not in (0, 3):
            raise SystemExit(error[-3000:])
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def counted_events(case):
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "config.json")
        config.write_text(json.dumps(case.config()), encoding="utf-8")
        code, out, error = run([PROGRAMS / "dump_events", config, case.cluster(), STEPS, *(f"{name}={value}" for name, value in case.job().items())])
        if code != 0:
            raise SystemExit(f"dump_events: {error}")
        return [json.loads(line) for line in out.splitlines()]


TINY = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "ffn": 192, "vocabulary": 2050, "sequence": 128}
SMALL = {"hidden": 1024, "layers": 4, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 16384, "sequence": 2048}
SAMPLE = [Case(**TINY)]
FEW = [
    *SAMPLE,
    Case(**TINY, checkpointing="none"),
    Case(**TINY, checkpointing="full", optimizer="foreach", batch=3),
    Case(**{**TINY, "sequence": 1600, "kv_heads": 1, "ffn": 111}, batch=2, ranks=7, reshard="always", checkpointing="none", optimizer="loop"),
    Case(**{**TINY, "kv_heads": 4}, replicas=2, checkpointing="every:2"),
    Case(**SMALL, ranks=8, reshard="never", checkpointing="full"),
    Case(**TINY, accumulation=3),
    Case(**TINY, card="A100-80GB", checkpointing="full"),
    Case(**SMALL, ranks=2),
    Case(ranks=8, sequence=8192),  # Llama 3 8B
]
MORE = [
    *(Case(**SMALL, ranks=8, reshard=reshard, checkpointing=checkpointing)
      for reshard in ("default", "always", "never") for checkpointing in ("none", "selective", "full", "every:2")),
    Case(ranks=8, checkpointing="full"),
    Case(ranks=8, sequence=4096, batch=2, checkpointing="none"),
    Case(**TINY, accumulation=2, checkpointing="none", reshard="never"),
    Case(**TINY, accumulation=2, checkpointing="none", reshard="never", replicas=2),
    Case(**TINY, accumulation=4, checkpointing="full", optimizer="foreach"),
]

TORCHTITAN = Comparison(
    script=FOLDER / "events_test.py", case_type=Case, libraries=LIBRARIES, sample=SAMPLE, few=FEW, more=MORE, warm=contextlib.nullcontext,
    rehearsed=lambda case, _: rehearsed_events(case), counted=counted_events,
    changed=lambda case: dataclasses.replace(case, checkpointing="full" if case.checkpointing == "none" else "none"), are_optional=True)


if __name__ == "__main__":
    sys.exit(TORCHTITAN.run(*sys.argv[1:]))
