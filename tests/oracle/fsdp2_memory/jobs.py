"""The jobs of docs/fsdp2-memory.md: a pairwise cover of what a memory comparison can depend on, drawn from one seed.

    jobs.py    prints them, one per line

Axes, seed and limits were fixed before the first measurement, and every resulting row is in the table.
"""

import dataclasses
import itertools
import random

SEED, FEWEST = 20261121, 32

# Published shapes; the 8B model with as many layers as fit a card at two ranks and without its large vocabulary.
SHAPES = {
    "8b-blocks": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 6,
                  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
                  "vocab_size": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "1b": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
           "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    "0.6b": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
             "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0},
}
SHAPES["8b, vocabulary 1024"] = {**SHAPES["8b-blocks"], "num_hidden_layers": 32, "vocab_size": 1024}
SHAPES["8b"] = {**SHAPES["8b-blocks"], "num_hidden_layers": 32, "vocab_size": 128256}
# The largest cards of the Hopper kind, so that nobody's allocator has to give anything back.
CLUSTERS = {2: "2xH200-141GB", 8: "8xH200-141GB", 64: "8x8xH200-141GB", 512: "64x8xH200-141GB"}
BY_DEFAULT = "default"  # of the engine: no row of the cover leaves its loss to it
FROZEN = {"none": [], "bottom": ["*embed_tokens*", "*layers.0.*", "*layers.1.*"], "mlp": ["*mlp*"]}

AXES = {
    "shape": ["8b-blocks", "1b", "0.6b"],
    "ranks": list(CLUSTERS),
    "sharding": ["full-shard", "full-shard always", "full-shard last-kept", "shard-grad-op", "hybrid-shard"],
    "sequence": [512, 4096, 8192],
    "micro_batch": [1, 2],
    "accumulation": [1, 2],
    "checkpointing": ["none", "full"],
    "loss": ["full", "chunked:8"],
    "embeddings": ["wrapped", "root"],
    "tied": [False, True],
    "frozen": list(FROZEN),
    "prefetch": ["default", "forward 2"],
}


@dataclasses.dataclass(frozen=True)
class Job:
    shape: str
    ranks: int
    sharding: str
    sequence: int
    micro_batch: int
    accumulation: int
    checkpointing: str
    loss: str
    embeddings: str
    tied: bool
    frozen: str
    prefetch: str

    def shown(self):
        """As a row of the table says it: what a plain job of that shape has goes unsaid."""
        words = [self.shape, f"{self.ranks} ranks", self.sharding, f"seq {self.sequence}",
                 f"batch {self.micro_batch}" + (f" x {self.accumulation}" if self.accumulation > 1 else "")]
        words += ["checkpointed"] * (self.checkpointing == "full")
        words += [self.loss] * (self.loss != "full")
        words += ["embeddings in the root"] * (self.embeddings == "root")
        words += ["tied"] * self.tied
        words += [f"frozen: {self.frozen}"] * (self.frozen != "none")
        words += [f"prefetch {self.prefetch}"] * (self.prefetch != "default")
        return ", ".join(words)

    def cluster(self):
        return CLUSTERS[self.ranks]

    def config(self):
        """config.json of the model."""
        shared = {"max_position_embeddings": self.sequence, "tie_word_embeddings": self.tied, "hidden_act": "silu",
                  "attention_bias": False}
        return {**SHAPES[self.shape], **shared}

    def replicas(self):
        """One a node, and two on one node."""
        return 1 if self.sharding != "hybrid-shard" else max(2, self.ranks // 8)

    def vramfit_fields(self, allocator):
        """Field -> value, as `--set` and dump_peaks take them."""
        sharding, _, reshard = self.sharding.partition(" ")
        fields = {"sharding": sharding, "seq_len": self.sequence, "micro_batch": self.micro_batch,
                  "grad_accum": self.accumulation, "checkpointing": self.checkpointing, "loss": self.loss,
                  "wrap_embeddings": "on" if self.embeddings == "wrapped" else "off", "attention": "flash",
                  "allocator": allocator}
        if self.loss == BY_DEFAULT:
            del fields["loss"]
        if reshard:
            fields["reshard"] = reshard
        if self.replicas() > 1:
            fields["mesh"] = f"replicate={self.replicas()},shard={self.ranks // self.replicas()}"
        if self.frozen != "none":
            fields["freeze"] = ",".join(FROZEN[self.frozen])
        if self.prefetch != "default":
            fields["prefetch"] = "backward=post,forward=2"
        return fields


# Beside the cover: the whole 8B model on one node, as its users would run it, and as an earlier trial of this engine did.
WHOLE = [Job("8b", 8, "full-shard", 8192, 1, 1, "full", loss, "wrapped", False, "none", "default") for loss in ("full", "chunked:8")]
WHOLE += [Job("8b, vocabulary 1024", 8, "full-shard", sequence, 1, 1, checkpointing, "full", "wrapped", False, "none", "default")
          for sequence, checkpointing in ((8192, "full"), (512, "full"), (8192, "none"))]


def is_allowed(row):
    # Two replicas of one rank each would not be sharded.
    return row["sharding"] != "hybrid-shard" or row["ranks"] > 2


def pairs_of(row):
    return {pair for pair in itertools.combinations(row.items(), 2)}


def cover(seed=SEED, fewest=FEWEST):
    """Rows such that every two values of two axes meet in one of them; drawn greedily, filled up to `fewest`."""
    draw = random.Random(seed)

    def random_row(fixed=()):
        while True:
            row = {axis: draw.choice(values) for axis, values in AXES.items()} | dict(fixed)
            if is_allowed(row):
                return row

    missing = [((a, x), (b, y)) for a, b in itertools.combinations(AXES, 2) for x in AXES[a] for y in AXES[b]
               if is_allowed({"sharding": None, "ranks": 8, a: x, b: y})]
    left, rows = set(missing), []
    for pair in missing:
        if pair in left:
            rows.append(max((random_row(pair) for _ in range(200)), key=lambda row: len(pairs_of(row) & left)))
            left -= pairs_of(rows[-1])
    while len(rows) < fewest:
        rows.append(random_row())
    return [Job(**row) for row in rows]


if __name__ == "__main__":
    for job in cover() + WHOLE:
        print(job.shown())
