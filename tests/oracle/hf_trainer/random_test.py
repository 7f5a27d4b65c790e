"""Random jobs of transformers' Trainer: every event as counted.

Arguments: `random COUNT SEED [bert]` rehearses that many jobs, drawn from that seed on, of any family or of BERT; `record COUNT SEED` writes what it rehearses to random.json, with the
jobs themselves, and the other parts (recorded.py) are of that file. A job that has no rules is drawn again. Rehearsals are forks of one process that has the libraries.
"""

import collections
import dataclasses
import random
import sys
import time

from events_test import FOLDER, Case, count as count_events, counted_events, libraries, lines_of, rehearsed_events  # which puts the folder above on the path
from compare_events import by_step, first_difference
from family_parts import LIBRARIES
from recorded import Comparison

CARDS = ["A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB", "B200", "RTX3090", "RTX4090", "RTX5090", "A6000", "L4", "L40S"]
WITHOUT_BF16 = ["T4", "RTX2080Ti", "TITANRTX", "QuadroRTX8000"]
WINDOWED = ("mistral", "phi3", "gemma2", "gemma3_text")


def sizes(draw, family):
    head_dim = draw.choice([32, 64, 64, 96, 128, 128, 256])
    heads = draw.choice([1, 2, 3, 4, 6, 8])
    kv_heads = draw.choice([count for count in range(1, heads + 1) if heads % count == 0])
    found = {"hidden": head_dim * heads, "heads": heads, "kv_heads": kv_heads, "layers": draw.choice([1, 2, 3]), "ffn": draw.choice([8 * draw.randint(4, 300), draw.randint(50, 2000)]),
             "vocabulary": draw.choice([64 * draw.randint(8, 600), draw.randint(300, 40000)]), "sequence": draw.choice([32 * draw.randint(1, 40), draw.randint(20, 1500)])}
    if family in WINDOWED and draw.random() < 0.6:
        found["window"] = draw.choice([16, 64, 256, 4096])
    if family == "phi3" and draw.random() < 0.3:
        found["rotated"] = 0.5
    return found


def method(draw, precision):
    if draw.random() < 0.6:
        return {}
    found = {"lora_rank": draw.choice([1, 4, 8, 16, 64]), "lora_dropout": draw.choice([0, 0, 0.1]), "lora_targets": draw.choice(["all-linear", "all-linear", "q_proj,v_proj", "down_proj"]),
             "frozen_dtype": draw.choice(["bf16", "fp32"]) if precision == "bf16-mixed" else "bf16"}
    if precision == "bf16-mixed" and draw.random() < 0.4:
        found["quantization"] = draw.choice(["nf4", "nf4-double"])
    return found


def mixture(family, seed):
    """The same with experts, in some jobs; drawn apart from all else."""
    draw = random.Random(f"experts {seed}")
    with_experts = {"mistral": "mixtral", "qwen3": "qwen3_moe"}.get(family)
    if with_experts is None or draw.random() < 0.6:
        return {"family": family}
    found = {"family": with_experts, "experts": draw.choice([2, 4, 7, 8, 60, 128]), "normalized": draw.random() < 0.5, "ffn": 64 * draw.randint(1, 30)}
    found["chosen"] = draw.randint(1, min(8, found["experts"]))
    found["dense"] = tuple(layer for layer in range(3) if draw.random() < 0.3)
    return found


def learned_positions(found, seed):
    """The same as a GPT-2, in some jobs; drawn apart from all else."""
    draw = random.Random(f"gpt2 {seed}")
    if draw.random() < 0.9:
        return {}
    rates = [0, 0.1]
    targets = found.get("lora_targets", "all-linear")
    return {"family": "gpt2", "kv_heads": found["heads"], "quantization": "none", "lora_targets": {"q_proj,v_proj": "c_attn", "down_proj": "mlp.c_proj"}.get(targets, targets),
            "dropouts": (draw.choice(rates), draw.choice(rates), draw.choice(rates)), "activation": draw.choice(["gelu_new", "gelu_new", "gelu_pytorch_tanh", "gelu"])}


def masked(case, seed, is_certain):
    """The same as a BERT, in some jobs; drawn apart from all else."""
    draw = random.Random(f"bert {seed}")
    if draw.random() < 0.95 and not is_certain:
        return case
    rates = [0, 0.1]
    return dataclasses.replace(case, family="bert", kv_heads=case.heads, tied=True, lora_rank=0, quantization="none", sharding="no-shard", checkpointed_by="layers",
                               positions=draw.choice([0, max(512, case.sequence)]), dropouts=(0, draw.choice(rates), draw.choice(rates)),
                               activation=draw.choice(["gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu"]))


def without_bf16(case, seed):
    """The same in fp16, in some jobs, and often on a card that has no bf16; drawn apart from all else."""
    draw = random.Random(f"fp16 {seed}")
    if case.precision == "bf16-pure" or draw.random() < 0.6:
        return case
    card = draw.choice([case.card, draw.choice(WITHOUT_BF16)])
    case = dataclasses.replace(case, card=card, attention="auto" if card in WITHOUT_BF16 and case.attention == "flash" else case.attention)
    if case.precision == "fp32":
        return case
    frozen = draw.choice([case.frozen_dtype, "fp16"]) if case.quantization == "none" else case.frozen_dtype.replace("bf16", "fp16")
    return dataclasses.replace(case, precision="fp16-mixed", storage="fp32", frozen_dtype=frozen)


def drawn(seed, only=""):
    draw = random.Random(seed)
    family = draw.choice(["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text", "granite"])
    precision = draw.choice(["bf16-mixed", "bf16-mixed", "bf16-pure", "fp32"])
    adapters = method(draw, precision)
    ranks = draw.choice([1, 1, 1, 1, 2, 3, 4, 7, 8, 16, 64])
    sharding = draw.choice(["full-shard", "full-shard", "shard-grad-op", "no-shard"])
    found = {**sizes(draw, family), **mixture(family, seed), **adapters}
    case = Case(
        **{**found, **learned_positions(found, seed)}, precision=precision, ranks=ranks, tied=draw.random() < 0.5, batch=draw.choice([1, 1, 2, 3, 8]), accumulation=draw.choice([1, 1, 2, 3, 5]),
        storage="bf16" if precision == "bf16-mixed" and draw.random() < 0.15 else "fp32", checkpointing=draw.choice(["none", "full"]), card=draw.choice(CARDS), attention=draw.choice(["flash", "auto", "math"]),
        optimizer=draw.choice(["adamw:fused", "adamw:fused", "adamw:foreach", "adamw-8bit", "adafactor", "adamw:paged", "adamw-8bit:paged"]),
        sharding=sharding, checkpointed_by=draw.choice(["layers", "fsdp"]) if ranks > 1 and sharding != "no-shard" and not adapters else "layers")
    return without_bf16(masked(case, seed, only == "bert"), seed)


def compare(case, counted, rehearsed):
    start = time.monotonic()
    events = rehearsed(case)
    difference = first_difference(by_step(events), by_step(counted)) if events else "the Trainer fails, and there are rules for it"
    print(f"{case}\n  {difference or 'equal'}: {time.monotonic() - start:.1f} s", flush=True)
    return difference is None


def with_rules(count, seed, draw):
    """`count` jobs that have rules, of those that `draw` makes of `seed` and what follows, each with its counted events. Why the others have none is printed."""
    refused, found = collections.Counter(), 0
    while found < count:
        case = draw(seed)
        seed += 1
        done = count_events(case)
        assert done.returncode in (0, 1), done.stderr
        if done.returncode == 1:
            refused[done.stderr.splitlines()[0][:160]] += 1
            continue
        found += 1
        yield case, lines_of(done.stdout)
    for why, times in refused.most_common():
        print(f"{times} without rules: {why}")


def failures_of_drawn(count, seed, draw, rehearsed):
    """How many of them differ; all are printed."""
    unequal = [case for case, counted in with_rules(count, seed, draw) if not compare(case, counted, rehearsed)]
    print(f"{count} jobs, {len(unequal)} unequal")
    return len(unequal)


def one_micro_batch_more(case):
    return dataclasses.replace(case, accumulation=case.accumulation + 1)


RANDOM = Comparison(script=FOLDER / "random_test.py", case_type=Case, libraries=LIBRARIES, are_drawn=True, warm=libraries, rehearsed=rehearsed_events, counted=counted_events, changed=one_micro_batch_more)


def main(part, *arguments):
    if part == "random":
        count, seed, *only = arguments
        with libraries() as warm:
            return 1 if failures_of_drawn(int(count), int(seed), lambda drawn_seed: drawn(drawn_seed, *only), lambda case: rehearsed_events(case, warm)) else 0
    if part == "record":
        RANDOM.few = [case for case, _ in with_rules(*map(int, arguments), drawn)]
    return RANDOM.run(part, *arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
