"""What jobs of cards.py allocated on a GPU, as a record that later rehearsals are held to.

record.py make FOLDER FILE: of what cards.py kept of a GPU. record.py check FILE FOLDER: prints how what cards.py kept of a phantom GPU differs,
and fails if it does where the record names no reason.

Sizes in their order of allocation are compared, and what is freed between two of them; where blocks lie depends on the driver, and the order in
which several are freed at once on the version of Python. Peaks in requested bytes follow, and are compared too.
"""

import argparse
import hashlib
import json
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent))
from compare import events, gaps, reports, until_out_of_memory, without_places  # noqa: E402

# Jobs, by the beginnings of their names, in which a GPU and a phantom one differ.
REASONS = {
    "layers-convolution": "cuDNN's convolutions choose how much they work in",
    "vision-resnet50": "cuDNN's convolutions choose how much they work in",
    "layers-recurrent": "cuDNN's recurrent networks choose how much they work in",
    "compile": "torch.compile times kernels, and with a warm cache it doesn't",
    "torchao": "torch.compile times kernels, and with a warm cache it doesn't",
}
LIBRARIES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "torchao", "liger_kernel", "nvidia-cudnn-cu13")


def digest(rows):
    """Of the blocks that PyTorch hands out and takes back."""
    blocks = gaps([row for row in rows if row[0] in "+-"], without_places)
    text = json.dumps([*(list(each[:-1]) + [freed(each[-1])] for each in blocks[:-1]), freed(blocks[-1])])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def freed(counter):
    return sorted([*key, number] for key, number in counter.items())


def steps_of(report, steps):
    """Step -> (hash, requested at most). What was on its way when memory ran out isn't compared."""
    if "out_of_memory" in report:
        steps = until_out_of_memory(steps)
    peaks = {step["step"]: step for step in report["steps"]}
    return {name: {"blocks": digest(rows), "events": len(rows), **{key: peaks[name][key] for key in ("peak_requested", "peak_allocated", "peak_reserved", "retries", "oom")}}
            for name, rows in steps.items() if name in peaks}


def found_in(folder):
    kept = events(folder)
    return {name: (report, steps_of(report, kept[name])) for name, report in reports(folder).items() if "steps" in report and name in kept}


def reason_of(name):
    return next((reason for start, reason in REASONS.items() if name.startswith(start)), None)


def make(folder, path):
    jobs = found_in(folder)
    first = next(iter(jobs.values()))[0]
    record = {"about": "Allocations of training jobs on a GPU, recorded by tests/rehearse/on_card/cards.py. `blocks` is a hash of the sizes that PyTorch handed out and took back in a step.",
              "kind": "measured", "card": first["card"], "python": first["python"],
              "libraries": {name: first["libraries"][name] for name in LIBRARIES}, "jobs": {name: steps for name, (_, steps) in sorted(jobs.items())}}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def difference(card, phantom):
    """The first step that differs, and in what; "" if none does."""
    if list(card) != list(phantom):
        return f"steps {list(phantom)}, on the card {list(card)}"
    for name, step in card.items():
        keys = [key for key in ("blocks", "peak_requested", "retries", "oom") if step[key] != phantom[name][key]]
        if keys:
            return f"{name}: {', '.join(keys)}"
    return ""


def check(path, folder):
    wanted = json.loads(path.read_text(encoding="utf-8"))["jobs"]
    found = {name: job for name, job in found_in(folder).items() if name in wanted}
    equal = unexplained = same_reserved = 0
    for name, (_, steps) in found.items():
        apart, reason = difference(wanted[name], steps), reason_of(name)
        equal += not apart
        same_reserved += all(step["peak_reserved"] == steps.get(at, {}).get("peak_reserved") for at, step in wanted[name].items())
        unexplained += bool(apart) and not reason
        if apart:
            print(f"{name}: {apart}{f' ({reason})' if reason else ''}")
    print(f"{equal} of {len(found)} jobs equal; peaks of reserved memory, which depend on addresses, equal in {same_reserved}")
    if not found:
        sys.exit("no job is there to compare")
    sys.exit(1 if unexplained else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["make", "check"])
    parser.add_argument("first", type=pathlib.Path)
    parser.add_argument("second", type=pathlib.Path)
    options = parser.parse_args()
    (make if options.action == "make" else check)(options.first, options.second)


if __name__ == "__main__":
    main()
