"""What comparisons of TRL's trainers with DeepSpeed share: their jobs, drawn ones, and the libraries that rehearse them."""

import dataclasses
import typing

import deepspeed_events_test
from deepspeed_events_test import ZeroCase, heaviest_rank, other_bucket  # which puts the folders above on the path
from events_test import FOLDER, counted_events, libraries, rehearsed_events
from recorded import Comparison

SCARCE = "max_live_parameters=20000000,max_reuse_distance=3000000,sub_group_size=4000000,prefetch_bucket_size=6000000,param_persistence_threshold=0"
TRAINED_WITH = ["torch", "transformers", "accelerate", "peft", "trl", "datasets", "bitsandbytes"]


@dataclasses.dataclass
class TrlZeroCase(ZeroCase):
    MODELING: typing.ClassVar[str] = "trl"

    def prepares(self):
        return False

    def job(self):
        return {**super().job(), "modeling": self.MODELING}


def rehearsed_by(script, case, warm, groups=None, more=()):
    """By the rank whose part is largest where parts differ; `groups`: its trained parameters, where they aren't the usual ones."""
    rank = 0 if case.zero == 3 else heaviest_rank(case, groups(case)) if groups else heaviest_rank(case)
    return rehearsed_events(case, warm, script, rank, more)


def drawn_as(case_type, seed, *only):
    case = deepspeed_events_test.drawn(seed, *only)
    return case_type(**{field.name: getattr(case, field.name) for field in dataclasses.fields(case)})


def without_second_step(events):
    """The first step's up to its end, as the loop sees it, and what comes from the third on."""
    kept, step = [], ""
    for event in events:
        step = event[1] if event[0] == "mark" else step
        kept += [] if step == "step 2" else [event]
    return kept


def without_settling(events):
    """Of what is counted: the same without the reference's gathers behind the first step's last look at the loss."""
    second = next(i for i, event in enumerate(events) if event[:2] == ["mark", "step 2"])
    last = max(i for i, event in enumerate(events[:second]) if event[0] == "+" and event[4] == "loss: is it finite")
    return without_second_step(events[:last + 1] + events[second:])


def comparison(script, case_type, few, more, rehearsed, counted=counted_events):
    return Comparison(
        script=FOLDER / script, case_type=case_type, libraries=["deepspeed", "trl", "transformers", "torch", "accelerate", "peft", "bitsandbytes", "datasets"], are_optional=True, few=few, more=more,
        warm=lambda: libraries(*TRAINED_WITH), rehearsed=rehearsed, counted=counted, changed=other_bucket)
