"""Ledgers of 300 jobs, held by their hashes: a rebuild of what counts must not change a label, a byte or the order of an event.

ledger_hashes.txt holds a job a line after its hash and number of events. Without arguments every job is counted again and
compared. `--record` writes today's answers; `--draw N SEED` draws jobs anew first. A change that is meant to move events
records, and says in its commit which jobs changed and why.
"""
import os
import pathlib
import random
import subprocess
import sys

KEPT = pathlib.Path(__file__).with_suffix(".txt")
PROGRAM = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "ledger_hashes")

SMALL = ["bert", "gemma", "gemma2", "gemma3_text", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3"]
LARGE = ["llama-3.1-8b", "llama-3.2-1b", "qwen3-8b", "gemma-2-9b", "gemma-3-1b", "gpt2-xl", "phi-3-mini", "bert-large-cased", "llama-3.1-70b"]
TITAN = ["llama-3.1-8b", "llama-3.1-70b", "llama"]
DEVICES = ["cuda:75:40", "cuda:80:108", "cuda:86:84", "cuda:89:128", "cuda:90:132", "cuda:100:148", "cuda:120:170", "cpu:1:1", "cpu:2:1", "cpu:2:0"]
SHAPES = ["1x1", "1x2", "1x4", "1x8", "2x2", "2x8", "8x8"]

# Field: values that are drawn. What a job doesn't set keeps its default.
OWN = {
    "sharding": ["no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"],
    "reshard": ["default", "last-kept", "always", "never", "2"],
    "checkpointing": ["none", "full", "every:2", "every:3"],
    "precision": ["fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"],
    "reduce_dtype": ["fp32", "bf16", "fp16"],
    "buffer_dtype": ["fp32", "bf16"],
    "output_dtype": ["fp32"],
    "loss_scale": ["auto", "none", "1024", "dynamic:1024:10"],
    "loss": ["full", "chunked:2", "chunked:3", "chunked:8", "chunked-forward:3"],
    "label_smoothing": ["0", "0.1"],
    "z_loss": ["0", "1e-4"],
    "accumulate": ["sharded", "unsharded"],
    "bucket_bytes": ["26214400", "2000", "1000000"],
    "freeze": ["none", "layers:0", "*att*", "layers:0,embeddings", "head", "embeddings"],
    "gradient_mask": ["none", "keep:0.4"],
    "wrap": ["layer", "none", "size:6000", "size:18000", "size:50000000", "pattern:*att*n*,*.1"],
    "wrap_embeddings": ["on", "off"],
    "prefetch": ["backward=post,forward=1", "backward=pre,forward=2", "backward=none,forward=0", "backward=post,forward=3,limit=2",
                 "backward=pre,forward=1,limit=1"],
    "reduce_finish": ["early", "end"],
    "reshard_head": ["on", "off"],
    "deterministic": ["on", "off"],
    "attention": ["auto", "math", "flash", "efficient"],
    "load": ["each", "rank0"],
    "seq_len": ["17", "32", "128", "160", "512", "1000", "2048"],
    "micro_batch": ["1", "2", "3"],
    "grad_accum": ["1", "2", "3", "5"],
    "clip": ["off"],
    "micro_batches": ["all"],
}
TORCH = {
    "reshard": ["default", "last-kept", "always", "never"],
    "checkpointing": ["none", "full", "every:2", "selective"],
    "optimizer": ["adamw:fused", "adamw:foreach"],
    "sharding": ["full-shard", "hybrid-shard", "shard-grad-op"],
    "attention": ["flash", "auto"],
    "seq_len": ["512", "2048", "8192"],
    "micro_batch": ["1", "2"],
    "clip": ["off"],
}


def drawn(number, chance):
    """A random job's line."""
    own = number % 6 != 0
    device = chance.choice(DEVICES if own else ["cuda:80:108", "cuda:89:128", "cuda:90:132"])
    shapes = SHAPES if device.startswith("cuda") else SHAPES[:5]
    words = [chance.choice((SMALL if chance.random() < 0.6 else LARGE) if own else TITAN), chance.choice(shapes), device]
    if not own:
        words += ["runtime=pytorch-fsdp2", "modeling=torchtitan"]
    share = chance.choice([0.15, 0.3, 0.5])
    for field, values in (OWN if own else TORCH).items():
        if chance.random() < share:
            words.append(f"{field}={chance.choice(values)}")
    return " ".join(words)


def answers(jobs):
    done = subprocess.run([str(PROGRAM)], input="\n".join(jobs) + "\n", capture_output=True, text=True, timeout=500, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == len(jobs), f"{len(lines)} answers to {len(jobs)} jobs"
    return lines


def draw(count, seed):
    """`count` jobs that are not refused, with what each of them is answered."""
    chance = random.Random(seed)
    found, number = {}, 0
    while len(found) < count:
        batch = [drawn(number + i, chance) for i in range(count)]
        number += count
        found.update((job, answer) for job, answer in zip(batch, answers(batch)) if not answer.startswith("refused"))
    return dict(list(found.items())[:count])


def write(answered):
    KEPT.write_text("".join(f"{answer} {job}\n" for job, answer in answered.items()))


def read():
    """Job to its kept answer."""
    rows = [line.split(" ", 2) for line in KEPT.read_text().splitlines()]
    return {job: f"{digest} {events}" for digest, events, job in rows}


def main(arguments):
    if arguments[:1] == ["--draw"]:
        write(draw(int(arguments[1]), int(arguments[2])))
        return
    kept = read()
    today = dict(zip(kept, answers(list(kept))))
    if arguments[:1] == ["--record"]:
        write(today)
        return
    assert len(kept) >= 300, f"{len(kept)} jobs are kept"
    wrong = [f"{job}\n  kept {kept[job]}, now {today[job]}" for job in kept if kept[job] != today[job]]
    print("\n".join(wrong))
    print(f"{len(kept) - len(wrong)} of {len(kept)} ledgers are what they were")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
