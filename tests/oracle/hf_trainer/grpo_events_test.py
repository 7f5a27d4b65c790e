"""Every allocation of TRL's GRPOTrainer against the counted ledger, as sft_events_test.py compares those of its SFTTrainer, with the same parts."""

import collections
import dataclasses
import sys

from events_test import FOLDER, QLORA, SMALL, STEPS, TINY, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from gpt2_events_test import TINY as TINY_GPT2
from recorded import Comparison
from sft_events_test import LIBRARIES, SftCase


@dataclasses.dataclass
class GrpoCase(SftCase):
    reference: bool = False
    iterations: int = 1
    generation: int = 0  # micro-batches that are generated for at once; 0: those of a step

    def job(self):
        return {**super().job(), "modeling": "trl-grpo", **choices_of(self)}


def choices_of(case):
    """Of a job."""
    counts = [f"num_iterations={case.iterations}"] * (case.iterations > 1) + [f"steps_per_generation={case.generation}"] * (case.generation > 0)
    choices = ["reference"] * case.reference + counts
    return {"grpo": ",".join(choices)} if choices else {}


def steps_of_completions(case):
    """In how many steps they are trained on."""
    return max(1, (case.generation or case.accumulation) * case.iterations // case.accumulation)


def words_of_choices(case):
    """Of the script, which ends with a step that generates."""
    words = ["--beta", 0.04 if case.reference else 0, "--num-iterations", case.iterations, "--steps", (STEPS - 1) * steps_of_completions(case) + 1]
    return [str(word) for word in [*words, *(["--steps-per-generation", case.generation] if case.generation else [])]]


def of_each_step(events):
    """Their marks, with what follows each."""
    steps = []
    for event in events:
        if event[0] == "mark":
            steps.append((event[1], []))
        (steps[-1][1] if steps else steps).append(event)
    return steps


def made_in(step):
    """Which blocks, and how many of each."""
    return collections.Counter((event[1], event[3]) for event in step if event[0] == "+")


def most_bytes(steps):
    """That are there at once, in each step."""
    most, now = {}, 0
    for name, step in steps:
        for event in step:
            now += {"+": 1, "-": -1}.get(event[0], 0) * (event[1] if event[0] in "+-" else 0)
            most[name] = max(most.get(name, 0), now)
    return most


def number_of(name):
    return int(name.removeprefix("step ")) - 1 if name.startswith("step ") else None


def steps_that_generate(events, every):
    """These alone, one after the other: the others allocate nothing that such a step doesn't, have no more at once, and leave as much behind."""
    if events is None or every == 1:
        return events
    steps = of_each_step(events)
    numbers = [number_of(name) for name, _ in steps if number_of(name) is not None]
    whole, most = dict(steps)[f"step {max(numbers) + 1}"], most_bytes(steps)
    kept = []
    for name, step in steps:
        number = number_of(name)
        if number is None:
            kept += step
        elif number % every == 0:
            kept += [["mark", f"step {number // every + 1}"], *step[1:]]
        else:
            assert made_in(step) <= made_in(whole), f"{name} allocates what no step does that generates"
            assert most[name] <= most[f"step {max(numbers) + 1}"], f"{name} needs more than steps that generate"
    return kept


# Recorded, too. A step has two completions or more.
FEW = [
    GrpoCase(**TINY, batch=2, checkpointing="full"),
    GrpoCase(**TINY, batch=3, accumulation=8, tied=True),
    GrpoCase(**TINY, batch=4, precision="fp32", family="qwen3", checkpointing="full", optimizer="adamw:foreach"),
    GrpoCase(**{**TINY, "sequence": 2400}, batch=2, precision="bf16-pure", tied=True),
    GrpoCase(**TINY, batch=2, lora_rank=4, lora_dropout=0.1, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**{**TINY, "sequence": 640}, **QLORA, batch=2, checkpointing="full"),
    GrpoCase(**TINY, batch=2, precision="fp16-mixed", card="T4", attention="auto", checkpointing="full"),
    GrpoCase(**TINY, accumulation=5, family="qwen2"),
    GrpoCase(**TINY, batch=2, lora_rank=4, frozen_dtype="bf16", accumulation=2),
    GrpoCase(**TINY_GPT2, batch=2, tied=True, checkpointing="full"),
    GrpoCase(**TINY, batch=2, ranks=3, sharding="no-shard", accumulation=2),
    GrpoCase(**TINY, batch=3, ranks=2, sharding="no-shard", lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**TINY, batch=2, ranks=4, checkpointing="full", accumulation=2),
    GrpoCase(**TINY, ranks=2, lora_rank=4, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**TINY, ranks=8, family="qwen2", tied=True, sharding="shard-grad-op"),
    # A reference, and completions that are trained on again.
    GrpoCase(**TINY, batch=2, reference=True, checkpointing="full"),
    GrpoCase(**TINY, batch=2, accumulation=2, generation=4, reference=True, iterations=3, precision="bf16-pure"),
    GrpoCase(**TINY, batch=2, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, reference=True, iterations=2),
    GrpoCase(**{**TINY, "sequence": 640}, **QLORA, batch=2, reference=True, checkpointing="full", ranks=2),
    GrpoCase(**TINY, batch=2, ranks=2, sharding="no-shard", lora_rank=4, frozen_dtype="fp32", reference=True),
    GrpoCase(**TINY, batch=2, ranks=2, sharding="no-shard", iterations=2),
    GrpoCase(**TINY, batch=2, ranks=3, reference=True, checkpointing="full", accumulation=2),
    GrpoCase(**TINY, batch=2, ranks=2, reference=True, iterations=2, sharding="shard-grad-op"),
    GrpoCase(**TINY_GPT2, batch=2, tied=True, reference=True),
]
MORE = [
    GrpoCase(**SMALL, checkpointing="full", batch=8, accumulation=2),
    GrpoCase(**SMALL, batch=2, precision="bf16-pure", tied=True),
    GrpoCase(**{**SMALL, "kv_heads": 16}, batch=2, precision="fp32", tied=True, checkpointing="full", accumulation=2),
    GrpoCase(**{**SMALL, "sequence": 2047}, batch=2, attention="auto", card="A100-80GB", lora_rank=16, frozen_dtype="fp32", checkpointing="full"),
    GrpoCase(**{**SMALL, "sequence": 640}, batch=4, precision="fp16-mixed", card="T4", attention="auto", lora_rank=8, frozen_dtype="fp32"),
    GrpoCase(**{**SMALL, "sequence": 512, "window": 256}, batch=8, family="gemma2", tied=True, attention="auto", checkpointing="full"),
    GrpoCase(**{**SMALL, "window": 512, "layers": 7}, batch=2, family="gemma3_text", tied=True, attention="auto", checkpointing="full", optimizer="adafactor"),
    GrpoCase(**SMALL, family="phi3", batch=2, optimizer="adamw-8bit", checkpointing="full"),
    GrpoCase(**SMALL, family="granite", batch=2, tied=True, checkpointing="full", storage="bf16"),
    GrpoCase(**TINY_GPT2, batch=2, lora_rank=4, frozen_dtype="fp32", lora_dropout=0.1, tied=True),
    *(GrpoCase(**{**SMALL, "layers": 1, "sequence": sequence}, batch=batch, card=card, attention="auto") for sequence, batch, card in ((4096, 36, "RTX5090"), (1000, 80, "A100-80GB"))),
    GrpoCase(**{**SMALL, "sequence": 640}, **QLORA, ranks=2, tied=True, checkpointing="full"),
    GrpoCase(**TINY, ranks=2, precision="fp16-mixed"),
    GrpoCase(**TINY, ranks=2, precision="bf16-pure", batch=2),
    GrpoCase(**TINY, ranks=2, offload="params"),
    GrpoCase(**SMALL, batch=4, reference=True, iterations=2, checkpointing="full", accumulation=2),
    GrpoCase(**{**SMALL, "sequence": 1000}, batch=2, reference=True, generation=2, family="qwen3", tied=True, optimizer="adamw-8bit"),
    GrpoCase(**{**SMALL, "sequence": 512, "window": 256}, batch=2, family="gemma2", tied=True, attention="auto", reference=True),
    GrpoCase(**{**SMALL, "sequence": 640}, **QLORA, batch=4, family="phi3", iterations=4, reference=True, checkpointing="full", card="RTX4090"),
    GrpoCase(**SMALL, batch=2, ranks=8, reference=True, checkpointing="full"),
    GrpoCase(**SMALL, batch=2, ranks=4, iterations=2, family="granite", tied=True, accumulation=3),
    GrpoCase(**{**SMALL, "sequence": 512}, batch=2, ranks=2, offload="params", reference=True, iterations=2),
    GrpoCase(**{**SMALL, "sequence": 512}, batch=2, ranks=4, lora_rank=8, frozen_dtype="fp32", reference=True, generation=3),
    GrpoCase(**{**SMALL, "sequence": 512}, batch=3, ranks=2, sharding="no-shard", reference=True, iterations=2, precision="fp16-mixed", accumulation=2),
    GrpoCase(**{**TINY, "sequence": 3000}, ranks=2, sharding="no-shard", batch=8, checkpointing="full"),  # texts in several frames
]


def rehearsed(case, warm):
    """Of one GPU without a launcher: with one, accelerate gathers what is logged from the only rank."""
    events = rehearsed_events(case, warm, "grpo_train.py", 0 if case.ranks > 1 else None, words_of_choices(case))
    return steps_that_generate(events, steps_of_completions(case))


GRPO = Comparison(script=FOLDER / "grpo_events_test.py", case_type=GrpoCase, libraries=LIBRARIES, are_optional=True, few=FEW, more=MORE,
                    warm=lambda: libraries(*LIBRARIES), rehearsed=rehearsed, counted=counted_events, changed=other_precision)


if __name__ == "__main__":
    sys.exit(GRPO.run(*sys.argv[1:]))
