"""`vramfit explain` of what real PyTorch leaves on phantom GPUs: memory snapshots and an out-of-memory message.

Its figures are torch's own statistics to the byte, what Python's unpickler finds in the same file, and what the message says. Beside
the estimate of the same job, a snapshot of transformers' Trainer differs by a few bytes.
"""
import collections
import json
import os
import pickle
import subprocess
import sys
import tempfile

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
SCRIPT = os.path.join(SOURCE, "tests", "rehearse", "scripts", "snapshots.py")
TRAINER = os.path.join(SOURCE, "tests", "rehearse", "scripts", "trainer.py")
GIB = 1 << 30
# That of TRAINER, and its job.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
          "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
          "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0}
JOB = ["--gpus", "1xRTX4090", "--stack", "transformers", "--seq-len", "256", "--micro-batch", "2"]
RECORDED = """
import runpy, sys, torch
torch.cuda.memory._record_memory_history(stacks="python")
runpy.run_path(sys.argv[1], run_name="__main__")
torch.cuda.memory._dump_snapshot(sys.argv[2])
print("requested", torch.cuda.memory_stats()["requested_bytes.all.peak"])
"""


def explained(*arguments):
    done = subprocess.run([PROGRAM, "explain", *arguments, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read(path):
    with open(path, "rb") as file:
        return pickle.load(file)  # written by this test's own process


def equal(found, expected, what):
    assert found == expected, f"{what}: {found}, expected {expected}"


def check_state(device, snapshot):
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    equal(device["segments"], len(snapshot["segments"]), "segments")
    equal(device["reserved_bytes"], sum(segment["total_size"] for segment in snapshot["segments"]), "reserved")
    equal(device["allocated_bytes"], sum(block["size"] for block in live), "allocated")
    equal(device["held"]["requested_bytes"], sum(block["requested_size"] for block in live), "requested")
    equal(device["largest_free_bytes"], max((block["size"] for block in blocks if block["state"] == "inactive"), default=0), "largest free block")
    equal(sum(line["blocks"] for line in device["held"]["lines"]), len(live), "blocks by line")


def check_steps(folder):
    path = os.path.join(folder, "steps.pickle")
    snapshot = read(path)
    device = explained(path)["snapshot"]["devices"][0]
    check_state(device, snapshot)
    with open(os.path.join(folder, "peaks.json"), encoding="utf-8") as file:
        peaks = json.load(file)
    equal(device["allocated_bytes"], peaks["allocated_bytes.current"], "torch's allocated")
    equal(device["reserved_bytes"], peaks["reserved_bytes.current"], "torch's reserved")
    peak = device["peak"]
    equal(peak["held"]["requested_bytes"], peaks["requested_bytes.peak"], "torch's peak of requests")
    equal(peak["reserved_bytes"], peaks["reserved_bytes.peak"], "torch's peak of reserved memory")
    equal(peak["unmatched_events"], 0, "events without a counterpart")
    equal(device["out_of_memory"], None, "out of memory")
    phases = {part["phase"]: part["bytes"] for part in peak["held"]["phases"]}
    weights = 4 * (2 * 256 * 1024 + 1024 + 256)  # fp32, two matrices and two vectors
    equal(phases["load"], weights, "parameters")
    # The peak is in the second step's update, whose states were made in the first: two averages, and a count each on the card or not at all.
    assert 2 * weights <= phases["optimizer"] < 3.5 * weights, phases
    lines = {(line["place"] or {}).get("function") for line in peak["held"]["lines"]}
    assert {"main", "train"} <= lines, lines


def check_oom(folder, log):
    path = os.path.join(folder, "oom.pickle")
    snapshot, found = read(path), explained(path)
    check_state(found["snapshot"]["devices"][0], snapshot)
    event = [event for event in snapshot["device_traces"][0] if event["action"] == "oom"][-1]
    equal(found["card"]["asked_bytes"], event["size"], "asked for")
    equal(found["card"]["free_bytes"], event["device_free"], "free")
    equal(found["where"]["own"]["function"], "<listcomp>" if sys.version_info < (3, 12) else "hoard", "the line that asked")
    held = found["snapshot"]["devices"][0]["held"]["lines"][0]
    counts = collections.Counter(block["size"] for segment in snapshot["segments"] for block in segment["blocks"])
    equal((held["blocks"], held["bytes"]), (counts[GIB], counts[GIB] * GIB), "what fills the card")

    said = explained(log)
    card = said["card"]
    for name in ("asked_bytes", "free_bytes", "allocated_bytes"):  # the message rounds to hundredths of its unit
        assert abs(card[name] - found["card"][name]) <= 0.006 * GIB, (name, card[name], found["card"][name])
    equal(os.path.normpath(said["where"]["own"]["file"]), os.path.abspath(SCRIPT), "the script")
    equal(said["where"]["own"]["line"], found["where"]["own"]["line"], "its line")
    assert card["own_outside_bytes"] > 0 and card["lacking_bytes"] > 0, card
    total = sum(card[name] for name in ("allocated_bytes", "unallocated_bytes", "own_outside_bytes", "other_processes_bytes", "untold_bytes", "free_bytes"))
    assert abs(total - card["total_bytes"]) <= 0.03 * GIB, (total, card)


def check_async(folder):
    """cudaMallocAsync has no observers and no snapshots, and a message of its own."""
    log = os.path.join(folder, "async.log")
    hoard = "import torch\nkept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(100)]"
    with open(log, "w", encoding="utf-8") as file:
        done = subprocess.run([PROGRAM, "rehearse", "--gpus", "1xRTX4090", "--", sys.executable, "-c", hoard], stdout=file, stderr=subprocess.STDOUT,
                              timeout=600, check=False, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert done.returncode == 6, open(log, encoding="utf-8").read()
    found = explained(log)
    equal(found["log"]["failures"][0]["refused_by"], "async_allocator", "who refused")
    card = found["card"]
    equal((card["asked_bytes"], card["allocated_bytes"], card["limit_bytes"]), (GIB, 23 * GIB, None), "figures")
    assert 23.5 * GIB < card["total_bytes"] < 23.6 * GIB and 0 < card["free_bytes"] < GIB, card


def check_trainer(folder):
    path, config = os.path.join(folder, "trainer.pickle"), os.path.join(folder, "config.json")
    with open(config, "w", encoding="utf-8") as file:
        json.dump(CONFIG, file)
    command = [PROGRAM, "rehearse", "--gpus", "1xRTX4090", "--", sys.executable, "-c", RECORDED, TRAINER, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = explained(path, config, *JOB)
    said = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("requested ")]
    equal([found["snapshot"]["devices"][0]["peak"]["held"]["requested_bytes"]], said, "torch's peak of requests")
    rows = {row["what"]: (row["measured_bytes"], row["estimated_bytes"]) for row in found["beside"]["rows"] + found["beside"]["kinds"]}
    measured, estimated = rows["all else of a step"]  # the inputs are moved to the card in no phase that a frame tells
    rows["all else of a step"] = measured + rows["in no known phase"][0], estimated
    mask, rotary = 2 * 256 * 8, 2 * 4 * 32  # rows come without the mask that a tokenizer adds; the model's buffers count as workspace
    few = 64  # numbers of 4 or 8 bytes
    for what, most in (("requested at the peak", mask + few), ("reserved at most", 8 << 20), ("parameters (asked for at load)", rotary),
                       ("optimizer states (in its step)", few), ("all else of a step", mask + rotary + few)):
        measured, estimated = rows[what]
        assert abs(measured - estimated) <= most, (what, measured, estimated)
    assert any(each.startswith("tensors are not larger") for each in found["beside"]["findings"]), found["beside"]["findings"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "job.log")
        with open(log, "w", encoding="utf-8") as file:
            command = [PROGRAM, "rehearse", "--gpus", "1xRTX4090", "--", sys.executable, SCRIPT, folder]
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=600, check=False)
        assert done.returncode == 6, done.returncode
        check_steps(folder)
        check_oom(folder, log)
        check_async(folder)
        check_trainer(folder)


if __name__ == "__main__":
    main()
