"""What plans drawn at random take: `plan_sweep.py BINARY [SEED [COUNT]]` prints processor seconds of each, then the worst. Figures, not a
test. Requests that are refused don't count; one that takes more than a minute is stopped."""
import json
import random
import resource
import statistics
import subprocess
import sys

MOST_SECONDS, WORST = 60, 25
MODELS = (
    "gpt2 gpt2-xl bert-large-cased gemma-2-2b gemma-2-9b gemma-3-1b gemma-3-4b gemma-3-27b llama-3.2-1b llama-3.2-3b llama-3.1-8b "
    "llama-3.1-70b llama-3.1-405b qwen3-0.6b qwen3-4b qwen3-8b qwen3-32b qwen2.5-7b qwen2.5-14b qwen2.5-72b mistral-7b mistral-large phi-4 "
    "smollm2-360m tinyllama-1.1b"
).split()
CLUSTERS = (
    "1xRTX4090 2xRTX4090 4xRTX4090 8xRTX4090 1xRTX3090 8xL4 1xA100-40GB 4xA100-80GB 8xA100-80GB 2x8xA100-80GB 1xH100-80GB 2xH100-80GB "
    "8xH100-80GB 2x8xH100-80GB 4x8xH100-80GB 8xH200 2x8xH200 8xB200 3xRTX4090 6xL40S"
).split()
# How often a flag is given, and its values.
FLAGS = {
    "--seq-len": (0.6, [128, 512, 1024, 2048, 4096, 8192]),
    "--stack": (0.35, ["transformers", "torchtitan", "deepspeed", "trl", "accelerate", "trl-dpo", "trl-deepspeed", "trl-grpo"]),
    "--method": (0.25, ["lora", "qlora"]),
    "--allow": (0.2, ["any", "optimizer", "precision:bf16-pure", "seq-len", "method"]),
    "--sharding": (0.2, ["no-shard", "full-shard", "shard-grad-op"]),
    "--offload": (0.2, ["optimizer", "none", "params", "activations"]),
    "--checkpointing": (0.15, ["none", "full"]),
    "--optimizer": (0.1, ["adamw-8bit", "sgd", "adafactor"]),
}


def drawn(rng):
    cluster, cards = rng.choice(CLUSTERS), 1
    for part in cluster.split("-")[0].split("x")[:-1]:
        cards *= int(part)
    if rng.random() < 0.5:
        cluster += f",host={rng.choice([16, 32, 64, 128, 256, 1024])}GiB"
    words = [rng.choice(MODELS), "--gpus", cluster]
    if rng.random() < 0.75:
        words += ["--global-batch", str(cards * rng.choice([1, 2, 8, 12, 32, 48, 60, 120, 360]))]
    for flag, (share, values) in FLAGS.items():
        if rng.random() < share:
            words += [flag, str(rng.choice(values))]
    return words + (["--no-clip"] if rng.random() < 0.1 else [])


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    binary = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 120
    rng, rows = random.Random(seed), []
    stop_early = ["prlimit", f"--cpu={MOST_SECONDS}"]
    while len(rows) < count:
        words, before = drawn(rng), processor_seconds()
        done = subprocess.run([*stop_early, binary, "plan", *words, "--json"], capture_output=True, text=True)
        if not done.stdout and done.returncode in (1, 2, 4):
            continue  # refused
        search = json.loads(done.stdout)["search"] if done.stdout else {}
        counts = ", ".join(f"{search.get(name)} {name}" for name in ("configurations", "bounds", "times", "estimates"))
        rows.append((processor_seconds() - before, done.returncode, f"{' '.join(words)}: {counts}"))
        print("{:6.2f} s, exit code {}: {}".format(*rows[-1]), flush=True)
    rows.sort(reverse=True)
    print(f"the worst {WORST}:", *("{:6.2f} s, exit code {}: {}".format(*row) for row in rows[:WORST]), sep="\n")
    slow = [row for row in rows if row[0] > 1]
    print(f"median {statistics.median(row[0] for row in rows):.2f} s; {len(slow)} of {count} above a second,", end=" ")
    print(f"{sum(row[1] == 4 for row in slow)} of them without a plan")


main()
