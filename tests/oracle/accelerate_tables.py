"""accelerate's own tables of every catalog model, compared with model_specs/accelerate: bytes, rows and the drawn table.

Each entry's configuration makes AutoModel's class on the meta device, and accelerate measures that. Its command would
look the model up on the hub; only that step is replaced.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from accelerate.commands import estimate  # noqa: E402
from accelerate.utils import calculate_maximum_sizes, convert_bytes  # noqa: E402

OURS_ONLY = ("id", "aliases", "source", "published")
LEAST = 20


def meta_model(entry):
    """AutoModel's class of the entry's configuration, in fp32, without memory."""
    values = {key: value for key, value in entry.items() if key not in OURS_ONLY}
    settings = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        return transformers.AutoModel.from_config(settings, dtype=torch.float32)


def their_lines(entry, model):
    """What dump_accelerate prints, from accelerate."""
    total, (largest, _) = calculate_maximum_sizes(model)
    lines = [f"total {total}", f"largest {largest}"]
    estimate.create_empty_model = lambda *args, **kwargs: model
    arguments = argparse.Namespace(
        model_name=entry["id"],
        library_name="transformers",
        trust_remote_code=False,
        dtypes=["float32", "float16", "int8", "int4"],
    )
    for dtype, layer, size, training in estimate.gather_data(arguments):
        peak = max(training.values())
        cells = [dtype, convert_bytes(layer), convert_bytes(size), "N/A" if peak == -1 else convert_bytes(peak)]
        lines.append("memory " + ",".join(cells))
    for dtype in ("float32", "float16"):
        usage = estimate.estimate_training_usage(total, dtype)
        stages = [convert_bytes(usage[stage]) for stage in ("model", "gradients", "optimizer", "step")]
        lines.append("training " + ",".join([dtype] + stages))
    return lines


def their_table(entry):
    """The drawn table of `accelerate estimate-memory`; their_lines has put the model in place."""
    drawn = []
    keep = estimate.create_ascii_table
    estimate.create_ascii_table = lambda *args: drawn.append(keep(*args)) or drawn[-1]
    arguments = argparse.Namespace(
        model_name=entry["id"],
        library_name="transformers",
        trust_remote_code=False,
        dtypes=["float32", "float16", "int8", "int4"],
    )
    devnull = open(os.devnull, "w")
    stdout, sys.stdout = sys.stdout, devnull
    try:
        estimate.estimate_command(arguments)
    finally:
        sys.stdout = stdout
        devnull.close()
        estimate.create_ascii_table = keep
    return drawn[0].splitlines()


def difference(expected, got):
    """What the first differing line is, or None."""
    for a, b in zip(expected, got + ["(end)"] * len(expected)):
        if a != b:
            return f"accelerate: {a} | model_specs: {b}"
    return None


def main():
    program = Path(os.environ["VRAMFIT_BIN_DIR"]) / "dump_accelerate"
    output = subprocess.run([program, *sys.argv[1:]], check=True, capture_output=True, text=True).stdout
    compared, failures = 0, []
    for part in output.split("== ")[1:]:
        name, _, rest = part.partition("\n")
        text, _, lines = rest.partition("\n==\n")
        entry = json.loads(text)
        ours = lines.splitlines()
        expected = their_lines(entry, meta_model(entry))
        wrong = difference(expected, ours) or difference(their_table(entry), ours[len(expected) :])
        compared += 1
        if wrong:
            failures.append(f"{name}: {wrong}")
    print(f"{compared - len(failures)} of {compared} models have accelerate's tables")
    for failure in failures:
        print("FAILED " + failure)
    if not sys.argv[1:] and compared < LEAST:
        failures.append("too few")
        print(f"FAILED fewer than {LEAST} models were compared")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
