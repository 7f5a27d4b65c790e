"""Parts of a family's test: `recorded` compares with the file that `record` writes, without the libraries; `live` rehearses."""

from events_test import Case, counted_events, libraries, other_precision, rehearsed_events  # which puts the folder above on the path
from compare_events import failures_of
from recorded import failures_of_recorded, record

LIBRARIES = ["transformers", "torch", "accelerate", "peft", "bitsandbytes"]


def run_part(part, script, few, more):
    """`script`: the test's path, beside which its records are; `few`: cases that are recorded."""
    records = script.with_name(script.name.replace("_test.py", ".json"))
    if part == "recorded":
        return 1 if failures_of_recorded(records, lambda fields: Case(**fields), counted_events, other_precision) else 0
    with libraries() as warm:
        rehearsed = lambda case: rehearsed_events(case, warm)
        if part == "record":
            record(records, script.name, LIBRARIES, few, rehearsed)
            return 0
        return 1 if failures_of([*few, *more], rehearsed, counted_events, other_precision) else 0
