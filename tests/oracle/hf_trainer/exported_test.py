"""A plan for transformers' Trainer with FSDP2 or DDP, exported, started with `accelerate launch` as the export says, and rehearsed: its peaks are the plan's.

Loading is accelerate's own there (cpu_ram_efficient_loading), so what the allocator has cached when training begins differs a little.
Arguments: `ci` or `full`.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parent))
from dims import Dims  # noqa: E402

VRAMFIT = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", FOLDER.parents[2] / "build" / "release" / "bin"), "vramfit")
MOST = 0.005

MODEL = {"hidden": 1024, "layers": 4, "heads": 16, "kv_heads": 4, "ffn": 3584, "vocabulary": 32000, "sequence": 2048}
# GPUs and what is set beside; the planner chooses the rest.
CASES = {
    "ci": [("4xRTX4090@4GiB", [])],
    "full": [("4xRTX4090@4GiB", []), ("2xH100-80GB", ["--grad-accum", "2"]), ("8xRTX4090@3GiB", ["--checkpointing", "full"]), ("2xRTX4090", ["--sharding", "no-shard"])],
}


def run(words, **settings):
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True, check=False, timeout=500, **settings)
    if done.returncode != 0:
        raise SystemExit(f"{words[:3]}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def differences(gpus, flags, folder):
    """Share by which each rehearsed peak is off the plan's."""
    config, plan_file = folder / "config.json", folder / "plan.json"
    config.write_text(json.dumps(Dims(**MODEL).config("llama", False)), encoding="utf-8")
    run([VRAMFIT, "plan", config, "--gpus", gpus, "--stack", "transformers", "--seq-len", MODEL["sequence"], "-o", plan_file, *flags])
    run([VRAMFIT, "export", plan_file, "--to", "accelerate", "-o", folder])
    plan = json.loads(plan_file.read_text(encoding="utf-8"))
    job = plan["job"]
    print(gpus, job["sharding"], job["checkpointing"], job["micro_batch"], "x", job["grad_accum"], end=": ")
    launch = [pathlib.Path(sys.executable).parent / "accelerate", "launch", "--config_file", folder / "accelerate.yaml"]
    # accelerate.yaml says what FSDP checkpoints; without FSDP that is the script's part.
    checkpointing = job["checkpointing"] if job["sharding"] == "no-shard" else "none"
    script = [FOLDER / "train.py", "--config", config, "--attention", "auto", "--sequence", MODEL["sequence"], "--batch", job["micro_batch"],
              "--accumulation", job["grad_accum"], "--optimizer", job["optimizer"], "--checkpointing", checkpointing]
    report = json.loads(run([VRAMFIT, "rehearse", "--gpus", gpus, "--ranks", 0, "--json", "--", *launch, *script], env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ""}))
    planned, rehearsed = plan["prediction"]["ranks"][0], report["ranks"][0]
    return {peak: rehearsed[peak] / planned[peak] - 1 for peak in ("peak_allocated_bytes", "peak_reserved_bytes")}


def main(which):
    failed = False
    for gpus, flags in CASES[which]:
        with tempfile.TemporaryDirectory() as folder:
            off = differences(gpus, flags, pathlib.Path(folder))
        print(", ".join(f"{peak} {share:+.3%}" for peak, share in off.items()), flush=True)
        failed |= any(abs(share) > MOST for share in off.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
