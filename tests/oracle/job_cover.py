"""The axes of the jobs that compare the executor with FSDP2 and DDP, their valid combinations, and a pairwise cover of them."""

import itertools
import random
from dataclasses import dataclass, fields

HYBRID = ("hybrid-shard", "hybrid-shard-zero2")
RESHARDED = ("full-shard", "hybrid-shard")   # the shardings that leave --reshard a choice

# A value joins by being written here. "-" : the job doesn't have that choice.
AXES = {
    "family": ["llama", "qwen3", "gemma", "gpt2"],
    "ranks": [1, 2, 4],
    "sharding": ["no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"],
    "reshard": ["-", "default", "last-kept", "always", "never", "2"],
    "wrap": ["layer", "layers:2", "size", "none", "pattern"],
    "embeddings": ["on", "off"],
    "prefetch": ["backward=post,forward=1", "backward=pre,forward=2", "backward=none,forward=0", "backward=post,forward=3,limit=2",
                 "backward=pre,forward=1,limit=1"],
    "precision": ["fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"],
    "accumulation": ["1", "2", "2 unsharded"],
    "freezing": ["none", "layer", "pattern", "bottom"],
}

BLOCKS = {"gpt2": "transformer.h"}
EMBEDDINGS = {"gpt2": "transformer.w*"}
PATTERNS = {"gpt2": "*.mlp,*.attn"}
SIZE = 15000   # parameters: more than an attention of the models here, less than a block


@dataclass(frozen=True)
class ParityJob:
    """One job, by the values of AXES."""

    family: str
    ranks: int
    sharding: str
    reshard: str
    wrap: str
    embeddings: str
    prefetch: str
    precision: str
    accumulation: str
    freezing: str

    @property
    def name(self):
        return " ".join(str(getattr(self, f.name)) for f in fields(self))

    @property
    def mesh(self):
        """(replicate, shard)."""
        shard = shard_ranks(self.sharding, self.ranks)
        return self.ranks // shard, shard

    @property
    def wrap_flag(self):
        """The value of --wrap."""
        return {"size": f"size:{SIZE}", "pattern": f"pattern:{PATTERNS.get(self.family, '*.mlp,*.self_attn')}"}.get(self.wrap, self.wrap)

    @property
    def micro_batches(self):
        return int(self.accumulation.split()[0])

    @property
    def accumulate(self):
        """The value of --accumulate."""
        return "unsharded" if self.accumulation.endswith("unsharded") else "sharded"

    @property
    def frozen(self):
        """Globs of --freeze."""
        blocks, embeddings = BLOCKS.get(self.family, "model.layers"), EMBEDDINGS.get(self.family, "model.embed_tokens.*")
        return {"none": (), "layer": (f"{blocks}.1.*",), "pattern": ("*.mlp.*",), "bottom": (embeddings, f"{blocks}.0.*")}[self.freezing]


def shard_ranks(sharding, ranks):
    """Ranks that share a unit. Four ranks of a hybrid are two by two, two are replicas of whole shards."""
    if sharding == "no-shard":
        return 1
    return ranks // 2 if sharding in HYBRID else ranks


CONSTRAINED = ("ranks", "sharding", "reshard", "wrap", "embeddings")   # the axes that is_valid reads


def is_valid(row):
    if row["sharding"] in HYBRID and row["ranks"] == 1:
        return False
    if row["wrap"] not in ("layer", "layers:2") and row["embeddings"] != "on":
        return False   # other policies say themselves what becomes of embedding and head
    if row["reshard"].isdigit() and shard_ranks(row["sharding"], row["ranks"]) % int(row["reshard"]) != 0:
        return False
    return (row["reshard"] == "-") == (row["sharding"] not in RESHARDED)


def product(axes=None):
    """All valid combinations of AXES with the given axes narrowed, in order."""
    table = {**AXES, **(axes or {})}
    for values in itertools.product(*table.values()):
        row = dict(zip(table, values))
        if is_valid(row):
            yield ParityJob(**row)


def valid_pairs(axes):
    """Pairs of values of two axes that some valid job has."""
    cores = [dict(zip(CONSTRAINED, v)) for v in itertools.product(*(axes[a] for a in CONSTRAINED))]
    cores = [core for core in cores if is_valid(core)]
    pairs = set()
    for (a, va), (b, vb) in itertools.combinations(axes.items(), 2):
        for x, y in itertools.product(va, vb):
            chosen = {a: x, b: y}
            if any(all(core.get(axis, value) == value for axis, value in chosen.items()) for core in cores):
                pairs.add((a, x, b, y))
    return pairs


def pairs_of(job):
    row = [(f.name, getattr(job, f.name)) for f in fields(job)]
    return {(a, x, b, y) for (a, x), (b, y) in itertools.combinations(row, 2)}


def random_job(generator, axes, chosen):
    """A valid job with the chosen values; there is one for every valid pair."""
    while True:
        row = {axis: chosen.get(axis, generator.choice(values)) for axis, values in axes.items()}
        if is_valid(row):
            return ParityJob(**row)


def pairwise_cover(axes=None, seed=11, tries=60, given=()):
    """Jobs that have every valid pair between them and those `given`, with the given axes narrowed; the same ones for the same seed."""
    axes = {**AXES, **(axes or {})}
    generator = random.Random(seed)
    missing, jobs = valid_pairs(axes).difference(*map(pairs_of, given)), []
    while missing:
        a, x, b, y = min(missing, key=repr)
        best = max((random_job(generator, axes, {a: x, b: y}) for _ in range(tries)), key=lambda job: len(pairs_of(job) & missing))
        missing -= pairs_of(best)
        jobs.append(best)
    return jobs


def covered(jobs, axes=None):
    """(pairs that the jobs have, pairs there are): what a cover must make equal."""
    seen = set().union(*map(pairs_of, jobs))
    pairs = valid_pairs({**AXES, **(axes or {})})
    return len(seen & pairs), len(pairs)


def spread(jobs, axes, seed=12):
    """The same jobs with the given axes drawn at random wherever that is valid."""
    generator = random.Random(seed)
    for job in jobs:
        row = {f.name: getattr(job, f.name) for f in fields(job)}
        while True:
            drawn = {**row, **{axis: generator.choice(AXES[axis]) for axis in axes}}
            if is_valid(drawn):
                break
        yield ParityJob(**drawn)


def full_product():
    """What `./test --full` compares; docs/parity.md says why it is these two."""
    one = {axis: values[:1] for axis, values in AXES.items()}
    schedule = ("reshard", "wrap", "embeddings", "prefetch")
    numbers = spread(product({**{axis: one[axis] for axis in schedule}, "reshard": ["-", "default"]}), schedule)
    order = product({"family": one["family"], "precision": ["fp32"], "freezing": ["none", "pattern"]})
    return list(dict.fromkeys([*numbers, *order]))
