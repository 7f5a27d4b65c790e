"""A family's test: its cases, some of which are recorded (recorded.py), with the libraries of the tests' own Python."""

from events_test import Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from recorded import Comparison

LIBRARIES = ["transformers", "torch", "accelerate", "peft", "bitsandbytes"]


def run_part(part, script, few, more, *numbers):
    """`script`: the test's path, beside which its records are; `few`: cases that are recorded."""
    family = Comparison(script=script, case_type=Case, libraries=LIBRARIES, few=few, more=more, warm=libraries, rehearsed=rehearsed_events, counted=counted_events, changed=other_precision)
    return family.run(part, *numbers)
