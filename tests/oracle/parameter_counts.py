"""Names, shapes and totals of every family's parameters and buffers, compared with transformers' meta-device models.

The same config.json is read by transformers and by model_specs (bin/dump_parameters). A configuration that transformers
refuses must be refused by model_specs too, or is counted as skipped.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import transformers  # noqa: E402

from model_configs import FAMILIES, configurations  # noqa: E402


def theirs(config):
    """Lines like dump_parameters writes, from the class that transformers makes on the meta device."""
    classes = FAMILIES[config["model_type"]][0]
    name = config.get("architectures", classes[:1])[0]
    arguments = {key: value for key, value in config.items() if key != "architectures"}
    settings = transformers.AutoConfig.for_model(**arguments)
    with torch.device("meta"):
        model = getattr(transformers, name)(settings)
    model.tie_weights()
    parameters = [f"parameter {n} {','.join(map(str, p.shape))}" for n, p in model.named_parameters()]
    # transformers makes some in the order of a set.
    buffers = sorted(f"buffer {n} {','.join(map(str, b.shape))}" for n, b in model.named_buffers())
    total = sum(p.numel() for p in model.parameters())
    return [f"class {name}"] + parameters + buffers + [f"total {total}"]


def ours(program, paths):
    """Path to lines, from one run of dump_parameters."""
    output = subprocess.run([program, *map(str, paths)], check=True, capture_output=True, text=True).stdout
    found, lines = {}, []
    for line in output.splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line[3:], [])
        else:
            lines.append(line.rstrip())
    for path, lines in found.items():
        buffers = sorted(line for line in lines if line.startswith("buffer "))
        others = [line for line in lines if not line.startswith("buffer ")]
        found[path] = others[:-1] + buffers + others[-1:]
    return found


def difference(expected, got):
    """What the first differing line is, or None."""
    for a, b in zip(expected + ["(end)"] * len(got), got + ["(end)"] * len(expected)):
        if a.strip() != b:
            return f"transformers: {a} | model_specs: {b}"
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=12, help="random configurations of each family")
    parser.add_argument("--seed", type=int, default=None, help="of the random configurations; default: by chance")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    program = Path(os.environ["VRAMFIT_BIN_DIR"]) / "dump_parameters"

    with tempfile.TemporaryDirectory() as folder:
        cases = {}
        for i, (label, config) in enumerate(configurations(seed, options.draws)):
            path = Path(folder) / f"{i}.json"
            path.write_text(json.dumps(config))
            cases[str(path)] = (label, config)
        found = ours(program, cases)

    compared, skipped, failures = 0, 0, []
    for path, (label, config) in cases.items():
        got = found[path]
        try:
            expected = theirs(config)
        except Exception as error:  # transformers refuses in many ways
            skipped += 1
            if "defaults" in label:
                failures.append(f"{label}: transformers refuses it: {error}")
            continue
        compared += 1
        wrong = difference(expected, got)
        if wrong:
            failures.append(f"{label}: {wrong}\n    {json.dumps(config)}")
    print(f"{compared} models equal by name, shape and total" if not failures else "")
    print(f"{skipped} configurations that transformers refuses")
    for failure in failures:
        print("FAILED " + failure)
    if compared < max(1, 2 * skipped):
        failures.append("too few")
        print("FAILED more than a third of the configurations were refused by transformers")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
