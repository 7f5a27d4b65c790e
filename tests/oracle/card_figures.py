"""Predictions beside what an H200 measured (configs/published/h200.json): memory to the byte, the tables of docs/on-a-card.md, time-model.md and kernels.md, and
configs/published/h200-steps.json, to which scripts/fit-efficiency fits figures of steps on a card alone.

    card_figures.py write   estimates the jobs and writes the tables and the steps
    card_figures.py check   fails if memory is predicted otherwise than it was measured, or something would change

After a change of the forms or of kernels' figures: this, scripts/fit-efficiency, build, and this again.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import keep, write_between

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", ROOT / "build" / "release" / "bin"))
MEASURED = json.loads((ROOT / "configs" / "published" / "h200.json").read_text(encoding="utf-8"))
CALIBRATION = ROOT / "configs" / "published" / "h200-calibration.json"
STEPS = ROOT / "configs" / "published" / "h200-steps.json"
CARD = "1xH200-141GB"
GIB, MIB = 2**30, 2**20
PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
MODELS = {"llama-3.2-1b": "meta-llama/Llama-3.2-1B", "llama-3.1-8b": "meta-llama/Llama-3.1-8B"}
# Of a model with fewer layers than the catalog's.
SHAPE_8B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "max_position_embeddings": 8192}


def estimate(model, flags):
    """Of compiled code there are times alone: its memory is not modelled, which is another exit code."""
    words = [PROGRAMS / "vramfit", "estimate", model, "--gpus", CARD, "--json", *flags]
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, check=False)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr}")
    return json.loads(done.stdout)


def median_seconds(job):
    """Of the steps after the first."""
    return statistics.median(job["step_seconds"][1:])


def phase_faults(job, rank):
    """Phases in which the card does nothing, as all is on the host, are measured and not predicted."""
    measured = {(phase, step): peaks for phase, step, *peaks in job["phases"]}
    for phase in rank["phases"]:
        at = (phase["phase"], phase["step"])
        if measured.get(at) != [phase[name] for name in PEAKS]:
            yield f"{name_of(job)}: peaks of {' '.join(at)} differ"


def memory_faults(job, rank):
    for name in PEAKS:
        if rank[name] != job[name]:
            yield f"{name_of(job)}: {name} {rank[name]}, measured {job[name]}"
    yield from phase_faults(job, rank)


def is_plain(flags):
    """Kernels alone decide how long it takes, without products in FP8."""
    return "--offload" not in flags and "fp8" not in flags


def name_of(job):
    left_out = {"--seq-len", "--host-memory"}
    flags = [f"{flag} {value}" for flag, value in zip(job["flags"][0::2], job["flags"][1::2]) if flag not in left_out]
    return f"{job['model'].split('/')[-1]}, {job['flags'][job['flags'].index('--seq-len') + 1]} tokens, `{' '.join(flags) or 'nothing else'}`"


def percent(predicted, measured):
    return f"{100 * (predicted / measured - 1):+.1f} %"


# What a measured step is for: figures are fitted to some, and never to others.
USED, HELD_OUT, USED_FOR_HOST, HELD_OUT_OF_HOST, NEITHER = "step_share_alone", "held out", "host_memory_bandwidth", "held out of it", "neither"
STEPS_ABOUT = ("Steps that one H200 ran (h200.json), predicted by oracle/card_figures with kernels as fast as alone. use: which figure of scripts/fit-efficiency a step "
               "decides, or that it was held out; every second one of a stack, and of those that update in host memory the first. host_gb_per_second: of host memory, with "
               "which the step is predicted to take what it took. Products in FP8 and other copies to the host decide nothing.")


def uses(jobs):
    """What each is for: (job, whether kernels of 16 bits and 32 alone decide, whether the CPU updates)."""
    seen = {True: 0, False: 0}
    for is_plain, updates_on_host in jobs:
        if not is_plain and not updates_on_host:
            yield NEITHER
            continue
        is_used = seen[is_plain] % 2 == 0
        seen[is_plain] += 1
        yield (USED if is_used else HELD_OUT) if is_plain else (USED_FOR_HOST if is_used else HELD_OUT_OF_HOST)


def step_row(identity, stack, seconds, alone):
    return {"id": identity, "stack": stack, "measured_seconds": round(seconds, 6), "alone_seconds": round(alone["step_seconds"], 6),
            "alone_compute_seconds": round(alone["compute_seconds"], 6)}


def host_gb_per_second(job, flags):
    """By halves; 0 where the CPU makes no updates."""
    low, high = 1.0, 1000.0
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "host.json")
        for _ in range(14):
            middle = (low * high) ** 0.5
            file.write_text(json.dumps({"figures": {"host_memory_bandwidth": [middle * 1e9, "tried"]}}), encoding="utf-8")
            is_slow = estimate(job["model"], [*flags, "--calibration", file])["speed"]["step_seconds"] > median_seconds(job)
            low, high = (middle, high) if is_slow else (low, middle)
    return round((low * high) ** 0.5, 1)


def engine_steps(engine):
    rows = []
    for job, _, known, _, alone in engine:
        row = step_row(name_of(job), "engine", median_seconds(job), alone)
        if known["exposed_host_seconds"] > 0:
            row["host_gb_per_second"] = host_gb_per_second(job, ["--stack", "vramfit", *job["flags"]])
        rows.append(row)
    return with_uses(rows, [is_plain(job["flags"]) for job, *_ in engine])


def with_uses(rows, is_plain):
    """Rows of one stack, in the order in which they were measured."""
    kinds = [(plain, "host_gb_per_second" in row) for row, plain in zip(rows, is_plain)]
    return [{**row, "use": use} for row, use in zip(rows, uses(kinds))]


def engine_rows(alone):
    """A job of the engine, what it is predicted to need, and its speeds: with the figures that are known of the card, with those that it measured, and with kernels
    as fast as alone."""
    for job in MEASURED["engine"]:
        flags = ["--stack", "vramfit", *job["flags"]]
        known = estimate(job["model"], flags)
        yield job, known["ranks"][0], known["speed"], *(estimate(job["model"], [*flags, "--calibration", file])["speed"] for file in (CALIBRATION, alone))


def engine_times(rows, steps):
    yield "| job of the engine | measured, s | predicted, s | error | fitted to it | with figures of this card |"
    yield "|-|-|-|-|-|-|"
    for (job, _, known, own, _), step in zip(rows, steps):
        seconds = median_seconds(job)
        inside = known["least_step_seconds"] <= seconds <= known["most_step_seconds"]
        yield (f"| {name_of(job)} | {seconds:.4f} | {known['step_seconds']:.4f} | {percent(known['step_seconds'], seconds)}{'' if inside else ', outside the range'} | "
               f"{step['use']} | {percent(own['step_seconds'], seconds)} |")


def pytorch_model(row, folder):
    if not row["layers"]:
        return MODELS[row["shape"]]
    path = pathlib.Path(folder, "config.json")
    path.write_text(json.dumps({**SHAPE_8B, "num_hidden_layers": row["layers"]}), encoding="utf-8")
    return path


def pytorch_rows(alone):
    with tempfile.TemporaryDirectory() as folder:
        for row in MEASURED["pytorch"]:
            flags = ["--stack", "accelerate", "--precision", row["precision"], "--micro-batch", row["batch"], "--seq-len", row["sequence"], "--checkpointing",
                     row["checkpointing"], "--optimizer", "adamw:fused", "--allocator", "native", *(["--compile", "on"] if row["compiled"] else [])]
            model = pytorch_model(row, folder)
            yield row, estimate(model, flags), estimate(model, [*flags, "--calibration", alone])["speed"]


def pytorch_name(row):
    layers = f" with {row['layers']} layers" if row["layers"] else ""
    kind = "compiled" if row["compiled"] else "eager"
    return f"{MODELS[row['shape']].split('/')[-1]}{layers}, {row['batch']} x {row['sequence']}, {row['precision']}, recomputed: {row['checkpointing']}, {kind}"


def pytorch_times(rows, steps):
    yield "| PyTorch's loop | measured, s | predicted, s | error | fitted to it |"
    yield "|-|-|-|-|-|"
    for (row, answer, _), step in zip(rows, steps):
        predicted, seconds = answer["speed"]["step_seconds"], row["median_seconds"]
        yield f"| {pytorch_name(row)} | {seconds:.4f} | {predicted:.4f} | {percent(predicted, seconds)} | {step['use']} |"


def engine_memory(rows):
    yield "| job of the engine | allocated, GiB | reserved, GiB | outside the allocator, MiB | events |"
    yield "|-|-|-|-|-|"
    for job, *_ in rows:
        yield (f"| {name_of(job)} | {job['peak_allocated_bytes'] / GIB:.3f} | {job['peak_reserved_bytes'] / GIB:.3f} | "
               f"{job['outside_allocator_bytes'] / MIB:.1f} | {job['events']} |")


def pytorch_memory(rows):
    yield "| PyTorch's loop | allocated, GiB | rehearsed - measured | estimated - measured | reserved, GiB | rehearsed - measured |"
    yield "|-|-|-|-|-|-|"
    for row, answer, _ in rows:
        if row["compiled"]:
            continue
        allocated, reserved = row["peak_allocated_bytes"], row["peak_reserved_bytes"]
        yield (f"| {pytorch_name(row)} | {allocated / GIB:.3f} | {row['rehearsed_allocated_bytes'] - allocated} bytes | "
               f"{(answer['ranks'][0]['peak_allocated_bytes'] - allocated) / MIB:+.2f} MiB | {reserved / GIB:.3f} | {percent(row['rehearsed_reserved_bytes'], reserved)} |")


def job_beside(row, kernels):
    """The engine's job of the same shape, or none."""
    model, recomputed = MODELS[row["shape"]], row["checkpointing"]
    for job in MEASURED["engine"]:
        flags = dict(zip(job["flags"][0::2], job["flags"][1::2]))
        wanted = {"--precision": row["precision"], "--kernels": kernels, "--micro-batch": str(row["batch"]), "--checkpointing": recomputed}
        defaults = {"--kernels": "libtorch", "--micro-batch": "1", "--checkpointing": "none"}
        others = set(flags) - set(wanted) - {"--seq-len"}
        if job["model"] == model and not others and all(flags.get(name, defaults.get(name)) == value for name, value in wanted.items()):
            return job
    return None


def speeds():
    yield "| job | engine, own kernels | engine, LibTorch's functions | PyTorch, eager | PyTorch, compiled |"
    yield "|-|-|-|-|-|"
    compiled = [row for row in MEASURED["pytorch"] if row["compiled"]]
    for row in MEASURED["pytorch"]:
        jobs = [None if row["layers"] else job_beside(row, kernels) for kernels in ("vramfit", "libtorch")]
        if row["compiled"] or not any(jobs):
            continue
        alike = [other for other in compiled if all(other[key] == row[key] for key in ("shape", "batch", "precision", "checkpointing"))]
        tokens = row["batch"] * row["sequence"]
        texts = [f"{tokens / median_seconds(job):.0f}" if job else "" for job in jobs]
        texts += [f"{tokens / other['median_seconds']:.0f}" if other else "" for other in (row, *(alike or [None]))]
        yield f"| {pytorch_name(row).removesuffix(', eager')} | " + " | ".join(texts) + " |"


def own_kernels():
    yield "| kernel | size | GB/s | GB/s of LibTorch's functions | times as fast |"
    yield "|-|-|-|-|-|"
    for row in MEASURED["own_kernels"]:
        yield (f"| {row['kernel']} | {row['size']} | {row['own_gb_per_second']:.0f} | {row['libtorch_gb_per_second']:.0f} | "
               f"{row['libtorch_seconds'] / row['own_seconds']:.1f} |")


def tables():
    """Faults of memory, measured steps, and pages, what marks their tables, and the tables' lines."""
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder, "alone.json")
        alone.write_text(json.dumps({"figures": {"step_share": [1, "as fast as alone"]}}), encoding="utf-8")
        engine, pytorch = list(engine_rows(alone)), list(pytorch_rows(alone))
    own_steps = engine_steps(engine)
    pytorch_steps = with_uses([step_row(pytorch_name(row[0]), "PyTorch", row[0]["median_seconds"], row[2]) for row in pytorch], [True for _ in pytorch])
    faults = [fault for job, rank, *_ in engine for fault in memory_faults(job, rank)]
    return faults, own_steps + pytorch_steps, [("on-a-card.md", "memory", list(engine_memory(engine))), ("on-a-card.md", "memory of PyTorch", list(pytorch_memory(pytorch))),
                    ("on-a-card.md", "speeds", list(speeds())), ("time-model.md", "engine", list(engine_times(engine, own_steps))),
                    ("time-model.md", "PyTorch", list(pytorch_times(pytorch, pytorch_steps))), ("kernels.md", "own kernels", list(own_kernels()))]


def main(arguments):
    faults, steps, made = tables()
    kept = {"about": STEPS_ABOUT, "rows": steps}
    if arguments == ["write"]:
        keep(STEPS, kept)
    elif json.loads(STEPS.read_text(encoding="utf-8")) != kept:
        faults.append("configs/published/h200-steps.json: not what scripts/card-figures writes")
    for page, name, lines in made:
        path = ROOT / "docs" / page
        begin, end = f"<!-- H200, {name}: written by scripts/card-figures -->", f"<!-- H200, {name}: end -->"
        if arguments == ["write"]:
            write_between(path, begin, end, ["", *lines, "", ""])
        elif "\n".join([begin, "", *lines, "", end]) not in path.read_text(encoding="utf-8"):
            faults.append(f"docs/{page}, {name}: not what scripts/card-figures writes")
    print("\n".join(faults) or f"{len(MEASURED['engine'])} jobs: memory as measured, to the byte")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
