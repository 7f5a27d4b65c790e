"""Runs one training script of tests/oracle with a log that also keeps what each step took, on a GPU or a phantom GPU.

card_job.py KIND RESULT [--more JSON] [--limit-mib N] [--left-mib N] -- WORDS: writes RESULT.json and RESULT.events.
"""

import argparse
import bisect
import ctypes
import gc
import hashlib
import importlib
import importlib.metadata
import json
import os
import pathlib
import runpy
import sys
import time
import traceback

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
ORACLE = ROOT / "tests/oracle"
sys.path.append(str(ORACLE))
import event_log  # noqa: E402

PROGRAMS = FOLDER.parent / "programs"
IS_PHANTOM = "VRAMFIT_PHANTOM" in os.environ
MIB = 1 << 20
KINDS = {"alloc": "+", "free_completed": "-", "segment_alloc": "s", "segment_free": "f", "segment_map": "m", "segment_unmap": "u", "oom": "o"}
LIBRARIES = ("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "torchao", "liger_kernel", "triton", "tokenizers", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13")


class Places:
    """Addresses as (number of the segment, offset): where they are differs from process to process."""

    def __init__(self):
        self.starts, self.segments, self.count = [], {}, 0

    def add(self, start, size, grows):
        at = bisect.bisect_right(self.starts, start) - 1
        if grows and at >= 0 and self.segments[self.starts[at]][1] == start:  # an expandable segment
            self.segments[self.starts[at]][1] += size
            return
        if start in self.segments:
            return
        bisect.insort(self.starts, start)
        self.segments[start] = [self.count, start + size]
        self.count += 1

    def remove(self, start):
        if self.segments.pop(start, None):
            self.starts.remove(start)

    def of(self, address):
        at = bisect.bisect_right(self.starts, address) - 1
        if at < 0 or address >= self.segments[self.starts[at]][1]:
            return "?"
        start = self.starts[at]
        return f"{self.segments[start][0]}:{address - start}"


class CardLog(event_log.EventLog):
    """Besides, the peaks of each step, and what was allocated where."""

    only = hashes = None

    def __init__(self):
        super().__init__()
        CardLog.only = self
        self.steps, self.start = [], time.monotonic()

    def mark(self, name):
        self.close()
        super().mark(name)

    def close(self):
        """Ends the step that is under way."""
        if self.marks and len(self.steps) < len(self.marks):
            more = torch.cuda.memory_stats()
            self.steps.append({"step": self.marks[-1][1], **event_log.peaks(), "oom": more["num_ooms"], "segments": more["segment.all.current"], "seconds": round(time.monotonic() - self.start, 3)})
            torch.cuda.reset_peak_memory_stats()
        self.start = time.monotonic()

    def write(self, path):
        self.close()
        places, streams = Places(), {}
        starts = dict(self.marks)
        hashes, counts, digest = {}, {}, hashlib.sha256()
        with open(path, "w", encoding="utf-8") as out:
            for number, event in enumerate(self.events()):
                if number in starts:
                    digest = hashes[starts[number]] = hashlib.sha256()
                    out.write(f"# {starts[number]}\n")
                kind = KINDS.get(event["action"])
                if kind is None:
                    continue
                if kind in "sm":
                    places.add(event["addr"], event["size"], kind == "m")
                stream = streams.setdefault(event["stream"], len(streams))
                place = "" if kind == "o" else places.of(event["addr"])
                line = f"{kind} {event['size']} {stream} {place}\n"
                out.write(line)
                digest.update(line.encode())
                counts[kind] = counts.get(kind, 0) + 1
                if kind == "f":
                    places.remove(event["addr"])
        self.hashes = {name: value.hexdigest()[:16] for name, value in hashes.items()}
        self.counts = counts


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def filled(make):
    """On a GPU, weights that are finite; a phantom GPU looks at none."""
    def made(*arguments, **more):
        model = make(*arguments, **more)
        if not IS_PHANTOM:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(0.01)
        return model
    return made


def used_outside():
    """What NVML knows of this process, and what the driver has left."""
    free, total = torch.cuda.mem_get_info()
    figures = {"free": free, "total": total}
    try:
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        figures["nvml_used"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        figures["nvml_process"] = [p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle) if p.pid == os.getpid()]
    except Exception as error:  # pylint: disable=broad-exception-caught  # not there, or not for this machine
        figures["nvml_error"] = repr(error)
    return figures


def take_all_but(left_bytes):
    """Of the driver, not of PyTorch's allocator."""
    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    runtime = ctypes.CDLL("libcudart.so.13")
    pointer = ctypes.c_void_p()
    status = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(free - left_bytes))
    return {"free_before": free, "left": torch.cuda.mem_get_info()[0], "status": status}


def play_program(words):
    """A script that knows nothing of the log: each step ends with an optimizer's."""
    *words, _, events = words
    log = CardLog()
    log.mark("step 1")
    count = 1

    def mark(*_):
        nonlocal count
        if not torch.cuda.is_current_stream_capturing():
            count += 1
            log.mark(f"step {count}")
    register_optimizer_step_post_hook(mark)
    script = PROGRAMS / words[0]
    sys.argv, sys.path[0] = [str(script), *words[1:]], str(PROGRAMS)
    gc.disable()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    log.write(events)


def main_of(kind, words, more):
    """The script's own main, with its arguments."""
    if kind == "program":
        return lambda: play_program(words)
    if kind == "titan":
        sys.path.insert(0, str(ORACLE / "torchtitan_like"))
        script = importlib.import_module("train")
        return lambda: script.main(words)
    sys.path.insert(0, str(ORACLE / "hf_trainer"))
    train = importlib.import_module("train")
    settings_of = train.settings_of
    train.settings_of = lambda options: {**settings_of(options), **more}
    train.built = filled(train.built)
    if kind == "trainer":
        return lambda: train.run(train.parse(words), train.trainer_of)
    script = importlib.import_module(f"{kind}_train")
    if not IS_PHANTOM and kind != "accelerate":  # there, kernels compute what they should
        importlib.import_module("sft_train").WithoutKernels = lambda library: library
    if kind == "accelerate":
        script.RECIPES = ROOT / "configs/recipes"
        return lambda: script.main(train.parse(words))
    if kind == "reward":
        script.base_of = filled(script.base_of)
    if kind == "grpo":
        chosen, others = script.choices_of(words)
        return lambda: train.run(train.parse(others), lambda options: script.trainer_of(options, chosen))
    return lambda: train.run(train.parse(words), script.trainer_of)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("result")
    parser.add_argument("--more", default="{}", help="arguments of TrainingArguments, as JSON")
    parser.add_argument("--limit-mib", type=float, default=0, help="of what PyTorch's allocator may reserve")
    parser.add_argument("--left-mib", type=float, default=0, help="the rest of the GPU is taken")
    parser.add_argument("--collect", action="store_true", help="Python's collector of cycles stays on")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    start = time.monotonic()
    event_log.EventLog = CardLog
    if options.collect:
        gc.disable = lambda: None
    report = {"kind": options.kind, "words": options.words, "phantom": IS_PHANTOM, "python": sys.version.split()[0], "cuda": torch.version.cuda,
              "card": torch.cuda.get_device_name(0), "total_memory": torch.cuda.get_device_properties(0).total_memory, "libraries": {name: version(name) for name in LIBRARIES}}
    if options.limit_mib:
        torch.cuda.set_per_process_memory_fraction((options.limit_mib * MIB + 0.5) / report["total_memory"])
    if options.left_mib:
        report["taken"] = take_all_but(int(options.left_mib * MIB))
    events = options.result + ".events"
    try:
        main_of(options.kind, [*options.words, "--events", events], json.loads(options.more))()
    except torch.OutOfMemoryError as error:
        report["out_of_memory"] = str(error)
    except Exception:  # pylint: disable=broad-exception-caught  # what was seen until then is kept
        report["error"] = traceback.format_exc()[-4000:]
    report["seconds"] = round(time.monotonic() - start, 1)
    log = CardLog.only or CardLog()
    if log.hashes is None:
        log.write(events)
    report |= {"steps": log.steps, "hashes": log.hashes, "counts": log.counts, "driver": used_outside()}
    pathlib.Path(options.result + ".json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
