"""Every allocation of transformers' Trainer with DeepSpeed's ZeRO-1, ZeRO-2 and ZeRO-3 against the counted ledger, as events_test.py compares those without DeepSpeed.

`recorded` compares with deepspeed_events.json, which `record` writes. `live` and `record` rehearse with the libraries of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), or of the Python that runs this; if that lacks them, the test is skipped (exit code 77).
`random COUNT SEED [lora]` draws jobs, as random_test.py does, some with adapters or all.
The rank that is rehearsed is the one that the estimate is for: the one that keeps most gradients, or with offload the one that has the largest part of a parameter. It is found here from the
library's own model. With ZeRO-3 all ranks allocate the same.
"""

import dataclasses
import random
import sys
import tempfile

from events_test import FOLDER, QLORA, SMALL, TINY, Case, config_file, counted_events, libraries, rehearsed_events  # which puts the folder above on the path
from random_test import CARDS, WITHOUT_BF16, failures_of_drawn, sizes
from recorded import SKIPPED, Comparison, with_libraries

KEYS = {"prefetch_bucket_size": "stage3_prefetch_bucket_size", "param_persistence_threshold": "stage3_param_persistence_threshold", "max_live_parameters": "stage3_max_live_parameters",
        "max_reuse_distance": "stage3_max_reuse_distance", "sub_group_size": "sub_group_size"}  # of --zero3-sizes, and of DeepSpeed's configuration


# What axolotl's configurations have: nothing is gathered ahead, and each part is updated alone.
AT_ONCE = "prefetch_bucket_size=auto,param_persistence_threshold=auto,max_live_parameters=0,max_reuse_distance=0,sub_group_size=0"


@dataclasses.dataclass
class ZeroCase(Case):
    sizes: str = ""  # of ZeRO-3, as --zero3-sizes has them
    serial: bool = False  # ZeRO-3 without overlap_comm, which is on by default

    def more_words(self):
        if self.zero < 3:
            return super().more_words()
        named = "prefetch_bucket_size=auto,param_persistence_threshold=auto" if self.sizes == "auto" else self.sizes
        sizes = [word.split("=") for word in named.split(",") if word]
        return [*(["--overlap", "off"] if self.serial else []), *(["--sizes", *(f"{KEYS[key]}={value}" for key, value in sizes)] if sizes else [])]

    def prepares(self):
        """Whether the script does: TRL's trainers take what is quantized as it is loaded."""
        return True

    def job(self):
        fields = super().job()
        if self.zero == 3:
            fields |= {"overlap_comm": "off" if self.serial else "on"} | ({"zero3_sizes": self.sizes} if self.sizes else {})
        if self.quantization != "none" and self.prepares():  # whatever the base is prepared in
            fields["frozen_dtype"] = self.precision.removesuffix("-mixed")
        return fields


# Recorded, too; the last one has another bucket in each step, which ZeRO-3 makes in loading. Buckets that hold a part of the gradients, or less than the largest, are those of larger models.
FEW = [
    ZeroCase(**TINY, zero=2, ranks=2, bucket=100_000),
    ZeroCase(**TINY, zero=2, ranks=4, bucket=30_000, accumulation=3, checkpointing="full", batch=2, tied=True),
    ZeroCase(**TINY, zero=1, ranks=3, bucket=30_000, accumulation=2, family="qwen2"),
    ZeroCase(**TINY, zero=2, ranks=1, clip=False),
    ZeroCase(**TINY, zero=1, ranks=7, checkpointing="full", family="qwen3"),
    # Of TINY the embedding and the output layer come and go, and all else stays whole; of SMALL, norms and biases stay.
    ZeroCase(**TINY, zero=3, ranks=4),
    ZeroCase(**TINY, zero=3, ranks=2, checkpointing="full"),
    *(ZeroCase(**SMALL, zero=3, ranks=ranks, checkpointing=checkpointing) for ranks, checkpointing in ((1, "none"), (2, "none"), (8, "full"), (64, "none"))),
    ZeroCase(**SMALL, zero=3, ranks=4, accumulation=3, bucket=5_000_000),
    ZeroCase(**SMALL, zero=3, ranks=3, accumulation=2, checkpointing="full", tied=True, family="qwen2"),
    ZeroCase(**SMALL, zero=3, ranks=2, tied=True, family="qwen3"),
    ZeroCase(**TINY, zero=3, ranks=4, precision="fp16-mixed", accumulation=2, checkpointing="full", clip=False),
    ZeroCase(**SMALL, zero=3, ranks=3, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    ZeroCase(**TINY, zero=3, ranks=2, offload="optimizer"),
    ZeroCase(**TINY, zero=3, ranks=1, offload="optimizer", accumulation=2),
    ZeroCase(**SMALL, zero=3, ranks=4, offload="optimizer", precision="fp16-mixed", tied=True, family="qwen2", accumulation=2, bucket=5_000_000),
    ZeroCase(**TINY, zero=3, ranks=1, offload="params", accumulation=2),
    ZeroCase(**SMALL, zero=3, ranks=3, offload="params", accumulation=3, checkpointing="full"),
    ZeroCase(**SMALL, zero=3, ranks=4, offload="params", precision="fp16-mixed", tied=True, family="qwen2", accumulation=2, bucket=5_000_000),
    ZeroCase(**SMALL, zero=3, ranks=4, sizes="auto", bucket=0, accumulation=2, checkpointing="full"),
    ZeroCase(**SMALL, zero=3, ranks=4, sizes=AT_ONCE, bucket=0, accumulation=2),
    ZeroCase(**SMALL, zero=3, ranks=2, sizes="max_live_parameters=20000000,max_reuse_distance=3000000,sub_group_size=4000000,prefetch_bucket_size=6000000,param_persistence_threshold=0"),
    ZeroCase(**SMALL, zero=3, ranks=3, serial=True, precision="fp16-mixed", family="qwen2", tied=True, accumulation=2),
    ZeroCase(**SMALL, zero=3, ranks=2, serial=True, sizes="auto", bucket=0, offload="optimizer", checkpointing="full"),
    ZeroCase(**SMALL, zero=3, ranks=2, serial=True, sizes=AT_ONCE, bucket=0, offload="params", accumulation=2),
    ZeroCase(**TINY, zero=3, ranks=2, optimizer="adamw:deepspeed"),
    ZeroCase(**SMALL, zero=3, ranks=3, optimizer="adamw:deepspeed", offload="params", precision="fp16-mixed", family="qwen2", tied=True, sizes="auto", bucket=0),
    ZeroCase(**TINY, zero=2, ranks=3, optimizer="adamw:deepspeed", bucket=30_000, accumulation=2),
    ZeroCase(**TINY, zero=1, ranks=4, optimizer="adamw:deepspeed", overlap=True, bucket=30_000),
    ZeroCase(**SMALL, zero=2, ranks=4, optimizer="adamw:deepspeed", offload="optimizer", bucket=20_000_000, accumulation=2),
    ZeroCase(**TINY, zero=2, ranks=64, bucket=500_000, optimizer="adamw:foreach"),
    ZeroCase(**TINY, zero=2, ranks=2, precision="fp16-mixed", card="T4", attention="auto", bucket=30_000, accumulation=2),
    ZeroCase(**TINY, zero=1, ranks=3, precision="fp16-mixed", clip=False),
    ZeroCase(**TINY, zero=2, ranks=4, offload="optimizer", bucket=100_000),
    ZeroCase(**TINY, zero=2, ranks=3, offload="optimizer", bucket=30_000, accumulation=3, checkpointing="full"),
    ZeroCase(**TINY, zero=1, ranks=2, offload="optimizer", bucket=30_000, accumulation=2, precision="fp16-mixed"),
    ZeroCase(**TINY, zero=2, ranks=2, overlap=True, bucket=100_000, accumulation=2),
    ZeroCase(**TINY, zero=1, ranks=4, overlap=True, bucket=30_000, accumulation=2),
    ZeroCase(**TINY, zero=1, ranks=4, overlap=True, bucket=5_000, accumulation=2),  # matrices are larger than the bucket
    ZeroCase(**TINY, zero=2, ranks=16, overlap=True, bucket=0, accumulation=2),
    ZeroCase(**TINY, zero=1, ranks=2, bucket=0),
    # Adapters. Those of TINY stay whole under ZeRO-3, those of SMALL's feed-forwards don't with `auto`.
    ZeroCase(**TINY, lora_rank=4, zero=2, ranks=2, bucket=3_000, accumulation=3, checkpointing="full", batch=2, tied=True),
    ZeroCase(**TINY, lora_rank=4, zero=1, ranks=3, bucket=3_000, accumulation=2, family="qwen2", lora_dropout=0.1),
    ZeroCase(**TINY, lora_rank=4, zero=1, ranks=64, checkpointing="full", lora_targets="q_proj,v_proj"),
    ZeroCase(**TINY, lora_rank=4, zero=2, ranks=4, offload="optimizer", accumulation=2, checkpointing="full", bucket=3000),
    ZeroCase(**TINY, lora_rank=4, zero=2, ranks=1, precision="fp16-mixed", frozen_dtype="fp16", optimizer="adamw:foreach", accumulation=2, checkpointing="full"),
    ZeroCase(**TINY, lora_rank=4, zero=3, ranks=2, bucket=100_000, accumulation=2),
    ZeroCase(**TINY, lora_rank=4, zero=3, ranks=1, precision="fp16-mixed", frozen_dtype="fp16", lora_targets="q_proj,v_proj"),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=4, checkpointing="full", lora_dropout=0.05),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=3, family="qwen2", tied=True, sizes="auto", bucket=0, accumulation=2),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=4, sizes=AT_ONCE, bucket=0, accumulation=2, checkpointing="full"),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=64, bucket=10_000),  # less than an adapter
    ZeroCase(**SMALL, lora_rank=8, zero=3, ranks=3, serial=True, offload="params", family="qwen2", tied=True, sizes="auto", bucket=0, accumulation=2, checkpointing="full", attention="auto"),
    # Bases in 4 bits. With ZeRO-3 their codes are in parts, which come and go with SMALL alone.
    ZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=3, ranks=2, checkpointing="full"),
    ZeroCase(**{**SMALL, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, zero=3, ranks=2),
    ZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=4, checkpointing="full", accumulation=2, lora_dropout=0.05),
    ZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "quantization": "nf4"}, zero=3, ranks=3, family="qwen2", tied=True, sizes="auto", bucket=0, checkpointing="full"),
    ZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=8, sizes=AT_ONCE, bucket=0, checkpointing="full"),
    ZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=1, precision="fp16-mixed", lora_targets="q_proj,v_proj", checkpointing="full"),
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=4, offload="params", sizes="auto", bucket=0, checkpointing="full", optimizer="adamw:deepspeed", accumulation=2),
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=64, offload="optimizer", family="qwen3", tied=True),
    ZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "frozen_dtype": "bf16"}, zero=2, ranks=2, bucket=3000),
    ZeroCase(**{**TINY, "sequence": 640}, **QLORA, zero=2, ranks=4, checkpointing="full", accumulation=2),
    ZeroCase(**{**TINY, "sequence": 640}, **{**QLORA, "quantization": "nf4"}, family="qwen2", zero=1, ranks=1, checkpointing="full", lora_dropout=0.1, tied=True),
    ZeroCase(**TINY, zero=2, ranks=3, overlap=True, offload="optimizer", bucket=30_000, accumulation=2),
    # pin_memory off, for both of ZeRO-3's kinds or for one.
    ZeroCase(**TINY, zero=2, ranks=3, offload="optimizer:pageable", bucket=30_000, accumulation=3, checkpointing="full"),
    ZeroCase(**TINY, zero=1, ranks=2, offload="optimizer:pageable", bucket=30_000, precision="fp16-mixed", overlap=True, optimizer="adamw:deepspeed"),
    ZeroCase(**TINY, lora_rank=4, zero=2, ranks=4, offload="optimizer:pageable", accumulation=2, checkpointing="full", bucket=3000),
    ZeroCase(**TINY, zero=3, ranks=2, offload="optimizer:pageable", accumulation=2),
    ZeroCase(**SMALL, zero=3, ranks=3, offload="params:pageable", accumulation=3, checkpointing="full"),
    ZeroCase(**SMALL, zero=3, ranks=4, offload="params,optimizer:pageable", precision="fp16-mixed", tied=True, family="qwen2", accumulation=2, bucket=5_000_000),
    ZeroCase(**SMALL, zero=3, ranks=2, offload="params:pageable,optimizer", serial=True, sizes=AT_ONCE, bucket=0),
]
MORE = [
    *(ZeroCase(**SMALL, zero=zero, ranks=ranks, bucket=bucket, tied=tied, accumulation=accumulation, checkpointing=checkpointing)
      for zero, ranks, bucket, tied, accumulation, checkpointing in (
          (2, 2, 500_000_000, False, 1, "none"), (2, 8, 20_000_000, True, 2, "full"), (2, 16, 2_000_000, False, 3, "full"), (2, 3, 10_000_000, True, 1, "none"),
          (1, 2, 500_000_000, True, 1, "full"), (1, 8, 20_000_000, False, 3, "none"), (1, 5, 2_000_000, True, 2, "full"), (1, 1, 20_000_000, False, 1, "none")))]
MORE += [
    *(ZeroCase(**SMALL, zero=zero, ranks=ranks, bucket=bucket, precision=precision, offload=offload, overlap=overlap, tied=tied, accumulation=accumulation, checkpointing=checkpointing)
      for zero, ranks, bucket, precision, offload, overlap, tied, accumulation, checkpointing in (
          (2, 2, 500_000_000, "fp16-mixed", "none", False, False, 1, "full"), (1, 8, 20_000_000, "fp16-mixed", "none", True, True, 2, "none"), (2, 8, 20_000_000, "bf16-mixed", "optimizer", False, False, 1, "full"),
          (2, 4, 2_000_000, "fp16-mixed", "optimizer", False, True, 3, "none"), (1, 3, 10_000_000, "bf16-mixed", "optimizer", True, False, 2, "full"), (2, 16, 2_000_000, "bf16-mixed", "optimizer", True, True, 2, "full"),
          (2, 8, 20_000_000, "bf16-mixed", "none", True, False, 1, "full"), (2, 3, 2_000_000, "bf16-mixed", "none", True, True, 3, "none"), (1, 1, 500_000_000, "bf16-mixed", "optimizer", False, False, 1, "full")))]
WIDE = {**TINY, "hidden": 512, "heads": 8, "ffn": 1024}
MORE += [
    ZeroCase(**WIDE, zero=3, ranks=3, accumulation=5, tied=True, family="mistral"),
    ZeroCase(**WIDE, zero=3, ranks=64, checkpointing="full", accumulation=2, optimizer="adamw:foreach", family="qwen3"),
    ZeroCase(**WIDE, zero=3, ranks=1, clip=False, accumulation=2, batch=2),
    *(ZeroCase(**SMALL, zero=3, ranks=ranks, tied=tied, bucket=bucket, accumulation=accumulation, checkpointing=checkpointing, attention="auto")
      for ranks, tied, bucket, accumulation, checkpointing in (
          (8, True, 20_000_000, 2, "full"), (16, False, 500_000_000, 4, "none"), (7, True, 2_000_000, 4, "full"), (1, False, 500_000_000, 3, "full")))]
MORE += [
    ZeroCase(**SMALL, zero=3, ranks=4, optimizer="adamw:deepspeed", offload="optimizer", accumulation=2, checkpointing="full", sizes="auto", bucket=0),
    ZeroCase(**SMALL, zero=3, ranks=4, optimizer="adamw:deepspeed", checkpointing="full", sizes="auto", bucket=0, clip=False),
    *(ZeroCase(**SMALL, zero=3, ranks=8, offload=offload, batch=2, clip=False) for offload in ("optimizer", "params")),
    ZeroCase(**WIDE, zero=3, ranks=3, sizes="auto", bucket=0, family="qwen2", tied=True),
    ZeroCase(**SMALL, zero=3, ranks=4, serial=True, accumulation=2, checkpointing="full", bucket=5_000_000)]
MORE += [ZeroCase(**SMALL, zero=3, ranks=4, family=family, attention=attention, tied=tied, checkpointing=checkpointing, accumulation=accumulation)
         for family, attention, tied, checkpointing, accumulation in (
             ("phi3", "auto", False, "full", 1), ("granite", "auto", True, "none", 2), ("gemma", "auto", True, "full", 1), ("gemma2", "math", True, "none", 1), ("gemma3_text", "auto", True, "full", 2))]
MORE += [ZeroCase(**SMALL, zero=2, ranks=4, bucket=20_000_000, family=family, attention="auto", tied=tied, checkpointing="full")
         for family, tied in (("mistral", False), ("qwen3", True), ("phi3", False), ("granite", True), ("gemma", True), ("gemma2", True), ("gemma3_text", True))]


MORE += [
    ZeroCase(**{**SMALL, "sequence": 1601}, **QLORA, zero=2, ranks=3, checkpointing="full", offload="optimizer"),
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=1, ranks=8, precision="fp16-mixed"),
    ZeroCase(**TINY, lora_rank=4, zero=2, ranks=2, optimizer="adamw:deepspeed", overlap=True, bucket=3000, tied=True, clip=False),
    ZeroCase(**TINY, lora_rank=4, zero=1, ranks=2, offload="optimizer", overlap=True, bucket=3000, accumulation=2),
    ZeroCase(**SMALL, lora_rank=16, zero=2, ranks=8, checkpointing="full", lora_dropout=0.05, attention="auto", accumulation=2),
    ZeroCase(**TINY, lora_rank=4, zero=3, ranks=2, offload="optimizer", accumulation=2, checkpointing="full", bucket=100_000),
    ZeroCase(**TINY, lora_rank=4, zero=3, ranks=1, offload="params", precision="fp16-mixed", frozen_dtype="fp16", bucket=100_000),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=2, offload="params:pageable", sizes="auto", bucket=0, accumulation=2, checkpointing="full"),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=2, lora_targets="q_proj,v_proj", checkpointing="full",
             sizes="max_live_parameters=20000000,max_reuse_distance=3000000,sub_group_size=100000,prefetch_bucket_size=6000000,param_persistence_threshold=0"),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=4, family="phi3", attention="auto", lora_dropout=0.1),
    ZeroCase(**SMALL, lora_rank=16, zero=3, ranks=4, family="gemma", tied=True, attention="auto", checkpointing="full", optimizer="adamw:deepspeed"),
    ZeroCase(**SMALL, lora_rank=64, zero=3, ranks=3, bucket=60_002, family="qwen3", accumulation=3, tied=True, precision="fp16-mixed", frozen_dtype="fp16", checkpointing="full")]
MORE += [
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=3, serial=True, family="qwen2", sizes="auto", bucket=0, accumulation=3),
    ZeroCase(**{**SMALL, "sequence": 1601}, **{**QLORA, "frozen_dtype": "bf16"}, zero=3, ranks=2, family="phi3", attention="auto", checkpointing="full", optimizer="adamw:foreach"),
    ZeroCase(**{**SMALL, "sequence": 640}, **QLORA, zero=3, ranks=7, family="gemma", tied=True, attention="auto", lora_dropout=0.1, accumulation=2),
    ZeroCase(**{**SMALL, "sequence": 512}, **{**QLORA, "quantization": "nf4"}, zero=3, ranks=2, family="granite", tied=True, attention="auto", precision="fp16-mixed", card="T4", checkpointing="full"),
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=1, offload="params", family="mistral"),
    ZeroCase(**{**SMALL, "sequence": 512}, **QLORA, zero=3, ranks=4, checkpointing="full", clip=False, batch=2, card="A100-80GB",
             sizes="max_live_parameters=20000000,max_reuse_distance=3000000,sub_group_size=100000,prefetch_bucket_size=6000000,param_persistence_threshold=0"),
    ZeroCase(**{**SMALL, "sequence": 100}, **QLORA, zero=3, ranks=2, family="qwen2", card="A100-80GB", checkpointing="full")]  # few tokens


def language_model(config):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    return model


def groups_of(case, make=language_model, task="CAUSAL_LM"):
    """Numbers of elements of the parameters that are trained, in the optimizer's groups: the Trainer's has two, and DeepSpeed's own one."""
    import torch
    from peft import get_peft_model
    from train import adapters_of
    from transformers import AutoConfig
    with tempfile.TemporaryDirectory() as folder, torch.device("meta"):
        model = make(AutoConfig.from_pretrained(config_file(case, folder)))
        model = get_peft_model(model, adapters_of(case, task)) if case.lora_rank else model
    trained = [p for p in model.parameters() if p.requires_grad]
    if case.optimizer == "adamw:deepspeed":
        return [[p.numel() for p in trained]]
    return [[p.numel() for p in trained if (p.dim() > 1) == is_matrix] for is_matrix in (True, False)]


def slices_of(case, groups):
    """Of each parameter: its size, and the elements that each rank's partition has of it."""
    for sizes in groups:
        part = 2 * -(-sum(sizes) // (2 * case.ranks))
        begin = 0
        for size in sizes:
            end = begin + size
            yield size, {rank: min(end, (rank + 1) * part) - max(begin, rank * part) for rank in range(begin // part, (end - 1) // part + 1)}
            begin = end


def heaviest_rank(case, groups=None):
    """The one whose partitions touch the most parameters, each counted whole; with offload the last one that has the largest part of one."""
    kept, largest = [0] * case.ranks, [0] * case.ranks
    for size, parts in slices_of(case, groups or groups_of(case)):
        for rank, elements in parts.items():
            kept[rank] += size
            largest[rank] = max(largest[rank], elements)
    if case.offload == "none":
        return kept.index(max(kept))
    return max(range(case.ranks), key=lambda rank: (largest[rank], rank))


def rehearsed(case, warm):
    return rehearsed_events(case, warm, "train.py", 0 if case.zero == 3 else heaviest_rank(case))


def drawn_sizes(draw):
    most = {"prefetch_bucket_size": 20_000_000, "param_persistence_threshold": 2_000_000, "max_live_parameters": 50_000_000, "max_reuse_distance": 50_000_000, "sub_group_size": 20_000_000}
    return ",".join(f"{key}={int(10 ** draw.uniform(3, 8)) % number}" for key, number in most.items() if draw.random() < 0.6)


def with_adapters(case, seed, is_certain):
    """The same with adapters, in some jobs; drawn apart from all else."""
    draw = random.Random(f"deepspeed lora {seed}")
    if draw.random() < 0.6 and not is_certain:
        return case
    return dataclasses.replace(case, lora_rank=draw.choice([1, 4, 8, 16, 64]), lora_dropout=draw.choice([0, 0, 0.1]), frozen_dtype=case.precision.removesuffix("-mixed"),
                               lora_targets="all-linear" if case.family == "phi3" else draw.choice(["all-linear", "all-linear", "q_proj,v_proj", "down_proj"]))


def pageable(case, seed):
    """The same with pin_memory off, in some jobs that offload; drawn apart from all else."""
    kinds = {"optimizer": ["optimizer:pageable"], "params": ["params:pageable", "params,optimizer:pageable", "params:pageable,optimizer"]}.get(case.offload, [])
    return dataclasses.replace(case, offload=random.Random(f"deepspeed pageable {seed}").choice([case.offload, *kinds]))


def drawn(seed, only=""):
    draw = random.Random(f"deepspeed {seed}")
    family = draw.choice(["llama", "mistral", "qwen2", "qwen3", "phi3", "granite"])
    precision = draw.choice(["bf16-mixed", "fp16-mixed"])
    card = draw.choice([*CARDS, *(WITHOUT_BF16 if precision == "fp16-mixed" else [])])
    zero = draw.choice([1, 2, 3, 3])
    own = {"serial": draw.random() < 0.3, "sizes": draw.choice(["", "auto", AT_ONCE, drawn_sizes(draw)])} if zero == 3 else {}
    case = ZeroCase(
        **sizes(draw, family), **own, family=family, precision=precision, card=card, zero=zero, ranks=draw.choice([1, 2, 3, 4, 7, 8, 16, 64]),
        bucket=draw.choice([500_000_000, 0, 2 * draw.randint(5_000, 50_000_000)]), offload=draw.choice(["none", "none", "optimizer", *(["params"] if zero == 3 else [])]), overlap=zero < 3 and draw.random() < 0.4, tied=draw.random() < 0.5, batch=draw.choice([1, 1, 2, 3]),
        accumulation=draw.choice([1, 1, 2, 3, 5]), checkpointing=draw.choice(["none", "full"]), attention="auto" if card in WITHOUT_BF16 else draw.choice(["flash", "auto", "math"]),
        optimizer=draw.choice(["adamw:fused", "adamw:foreach", "adamw:deepspeed"]), clip=draw.random() < 0.8)
    return with_adapters(pageable(case, seed), seed, only == "lora")


def other_bucket(case):
    return dataclasses.replace(case, bucket=(case.bucket or case.hidden**2) - 2)


DEEPSPEED = Comparison(
    script=FOLDER / "deepspeed_events_test.py", case_type=ZeroCase, libraries=["deepspeed", "transformers", "torch", "accelerate", "peft", "bitsandbytes"], are_optional=True, few=FEW, more=MORE,
    warm=lambda: libraries("torch", "transformers", "accelerate", "peft", "bitsandbytes"), rehearsed=rehearsed, counted=counted_events, changed=other_bucket)


def main(comparison, draw, what, *numbers):
    """`random COUNT SEED [FIELD...]` rehearses what `draw` makes of seeds; all else is the comparison's."""
    if what != "random":
        return comparison.run(what, *numbers)
    if not with_libraries(comparison.libraries):
        return SKIPPED
    count, seed, *only = numbers
    with comparison.warm() as warm:
        return 1 if failures_of_drawn(int(count), int(seed), lambda drawn_seed: draw(drawn_seed, *only), lambda case: comparison.rehearsed(case, warm)) else 0


if __name__ == "__main__":
    sys.exit(main(DEEPSPEED, drawn, *sys.argv[1:]))
