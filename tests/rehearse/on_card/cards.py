"""Runs training jobs of PyTorch's libraries, each in a process of its own, on a GPU or (--rehearse VRAMFIT) on a phantom one, and keeps what each did.

cards.py OUT: OUT/jobs.jsonl has a line for each job, OUT/events.gz every event of the allocator. compare.py compares two such folders,
record.py one with what was recorded of a GPU.
"""

import argparse
import dataclasses
import gzip
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.append(str(FOLDER.parents[1] / "oracle"))
from dims import FamilyDims  # noqa: E402

CARD = "H200-141GB"
ROOM_GIB = 132  # of the GPU, for jobs that run beside each other
CONTEXT_GIB = 1.5  # at most, of each process


def dims(*sizes, family="llama", tied=False, **more):
    names = ("hidden", "layers", "heads", "kv_heads", "ffn", "vocabulary", "sequence")
    own = {key: value for key, value in more.items() if key in FamilyDims.__dataclass_fields__}
    others = {key: value for key, value in more.items() if key not in own}
    return {**FamilyDims(**dict(zip(names, sizes)), **own).config(family, tied), **others}


CONFIGS = {
    "llama-1b": dims(2048, 16, 32, 8, 8192, 128256, 8192, tied=True),
    "llama-3b": dims(3072, 28, 24, 8, 8192, 128256, 8192, tied=True),
    "llama-8b": dims(4096, 32, 32, 8, 14336, 128256, 8192),
    "llama-small": dims(1024, 8, 16, 4, 3584, 32000, 8192),
    "mistral-small": dims(2048, 8, 16, 4, 7168, 32768, 8192, family="mistral", window=1024),
    "qwen2-0.5b": dims(896, 24, 14, 2, 4864, 151936, 8192, family="qwen2", tied=True),
    "qwen3-0.6b": dims(1024, 28, 16, 8, 3072, 151936, 8192, family="qwen3", tied=True, head_dim=128),
    "gemma2-small": dims(2304, 8, 8, 4, 9216, 256000, 8192, family="gemma2", tied=True, window=4096, head_dim=256, query_pre_attn_scalar=256),
    "gemma3-1b": dims(1152, 26, 4, 1, 6912, 262144, 8192, family="gemma3_text", tied=True, window=512, head_dim=256, query_pre_attn_scalar=256),
    "phi3-small": dims(3072, 8, 32, 32, 8192, 32064, 4096, family="phi3", window=2048),
    "granite-small": dims(2048, 8, 32, 8, 8192, 49152, 4096, family="granite", tied=True),
    "qwen3-moe": dims(1024, 6, 16, 4, 3072, 32000, 4096, family="qwen3_moe", experts=16, chosen=4),
    "gpt2": dims(768, 12, 12, 12, 3072, 50257, 1024, family="gpt2", tied=True),
    "bert": dims(768, 12, 12, 12, 3072, 30522, 512, family="bert", tied=True, activation="gelu"),
}


@dataclasses.dataclass
class Job:
    name: str
    config: str
    words: str = ""
    kind: str = "trainer"
    more: dict | None = None  # of TrainingArguments
    flags: str = ""  # of card_job.py
    allocator: str = "native"  # or expandable
    gib: float = 40  # reserved at most; what rehearsals found is in needs.json
    alone: bool = False
    launcher: str = ""
    seconds: int = 75


TITAN = "--hidden 2048 --layers 16 --heads 32 --kv-heads 8 --ffn 8192 --vocabulary 128256 --sequence 4096"
QLORA = "--lora-rank 16 --quantization nf4-double --frozen-dtype fp32"
LIMITED = "--sequence 2048 --batch 2 --attention auto"
# Of tests/rehearse/programs, those whose sizes follow from no value that the GPU computes.
PROGRAMS = [
    "layers.py convolution", "layers.py recurrent", "captured.py cuda_graph", "vision.py resnet50", "loops.py checkpointing", "loops.py grad_scaler", "loops.py optimizer_in_backward",
    "loops.py workers", "loops.py saved_and_resumed", "layers.py adversarial", "layers.py embedding_bag", "layers.py per_sample_gradients", "layers.py custom_function", "layers.py nested",
    "captured.py graphed_callable", "captured.py compiled", "steers.py unpadding", "steers.py tolist_split", "loops.py moving_average", "loops.py stochastic_weight_averaging", "loops.py flash_fallback",
    "experts.py mixtral batched_mm", "experts.py gpt_oss grouped_mm", "experts.py deepseek_v2 grouped_mm", "families.py whisper", "families.py t5", "families.py qwen_vision", "families.py padded_llama",
    "optimizers.py bitsandbytes_lion", "trainers.py evaluation",
]
# Most valuable first.
JOBS = [
    Job("llama-auto", "llama-1b", "--sequence 2048 --attention auto"),
    Job("llama-flash-checkpointed", "llama-1b", "--sequence 4096 --batch 2 --checkpointing full --attention flash"),
    Job("llama-auto-expandable", "llama-1b", "--sequence 1000 --batch 3 --attention auto", allocator="expandable"),
    Job("llama-eager", "llama-1b", "--sequence 1024 --attention math"),
    Job("llama-pure", "llama-1b", "--sequence 2048 --batch 2 --precision bf16-pure --attention auto --optimizer adamw:foreach"),
    Job("qwen3-accumulated", "qwen3-0.6b", "--sequence 2048 --accumulation 3 --optimizer adamw:foreach --attention auto"),
    Job("lora", "llama-1b", "--sequence 2048 --batch 2 --lora-rank 16 --lora-dropout 0.05 --checkpointing full --attention auto"),
    Job("limit-none", "llama-1b", LIMITED),
    Job("limit-retry", "llama-1b", LIMITED, flags="--limit-mib 31700"),
    Job("limit-tight", "llama-1b", LIMITED, flags="--limit-mib 30900"),
    Job("limit-oom", "llama-1b", LIMITED, flags="--limit-mib 29000"),
    Job("limit-oom-first", "llama-1b", LIMITED, flags="--limit-mib 15000"),
    Job("limit-expandable", "llama-1b", LIMITED, flags="--limit-mib 31400", allocator="expandable"),
    Job("sft", "llama-1b", "--sequence 2048 --attention auto", "sft"),
    Job("qlora", "llama-1b", f"--sequence 1024 --batch 2 --checkpointing full --attention auto {QLORA}"),
    Job("dpo-lora", "llama-1b", "--sequence 1024 --lora-rank 16 --attention auto", "dpo"),
    Job("gemma2", "gemma2-small", "--sequence 1024 --attention auto"),
    Job("gpt2", "gpt2", "--sequence 1024 --batch 4 --attention auto"),
    Job("fp32", "llama-1b", "--sequence 512 --precision fp32 --attention auto"),
    Job("adafactor", "llama-1b", "--sequence 1024 --optimizer adafactor --attention auto"),
    Job("liger", "llama-1b", "--sequence 4096 --attention auto", more={"use_liger_kernel": True}),
    Job("torchao-8bit", "qwen3-0.6b", "--sequence 1024 --optimizer adamw-8bit:torchao --attention auto", seconds=110),
    Job("bnb-8bit", "llama-1b", "--sequence 1024 --optimizer adamw-8bit --checkpointing full --attention auto"),
    Job("fsdp2", "llama-1b", "--sequence 2048 --fsdp full-shard --attention auto", launcher="torchrun"),
    Job("titan-plain", "", f"{TITAN} --runtime plain --checkpointing full --optimizer fused", "titan"),
    Job("titan-fsdp2", "", f"{TITAN} --runtime fsdp2 --ranks 1 --checkpointing selective", "titan"),
    Job("accelerate", "llama-1b", "--sequence 2048 --accumulation 2 --optimizer adamw:foreach --attention auto", "accelerate"),
    Job("llama-8b-lora", "llama-8b", "--sequence 2048 --lora-rank 16 --lora-targets q_proj,v_proj --precision bf16-pure --checkpointing full --attention auto"),
    Job("gemma3", "gemma3-1b", "--sequence 2048 --checkpointing full --attention auto"),
    Job("dpo", "qwen2-0.5b", "--sequence 1024 --checkpointing full --attention auto", "dpo"),
    Job("bert", "bert", "--sequence 512 --batch 8 --attention auto"),
    Job("phi3", "phi3-small", "--sequence 2048 --storage bf16 --attention auto"),
    Job("moe", "qwen3-moe", "--sequence 2048 --attention auto"),
    Job("pinned-and-collected", "llama-1b", "--sequence 1024 --accumulation 2 --attention auto", more={"dataloader_pin_memory": True}, flags="--collect"),
    Job("grpo", "qwen2-0.5b", "--sequence 512 --batch 8 --attention auto", "grpo"),
    Job("reward", "qwen3-0.6b", "--sequence 1024 --batch 2 --checkpointing full --attention auto", "reward"),
    Job("bnb-paged", "llama-small", "--sequence 2048 --optimizer adamw-8bit:paged --attention auto"),
    Job("sft-qlora", "llama-1b", f"--sequence 1024 --attention auto {QLORA}", "sft"),
    Job("dora", "llama-small", "--sequence 2048 --lora-rank 8 --dora --attention auto"),
    Job("fp16", "llama-small", "--sequence 2048 --precision fp16-mixed --attention auto --accumulation 2"),
    Job("mistral-window", "mistral-small", "--sequence 2048 --attention auto"),
    Job("granite", "granite-small", "--sequence 2048 --checkpointing full --attention auto"),
    Job("ddp", "llama-1b", "--sequence 2048 --attention auto", launcher="torchrun"),
    Job("compile", "llama-small", "--sequence 2048 --attention auto", more={"torch_compile": True}, seconds=150),
    Job("torchao-4bit", "llama-small", "--sequence 1024 --optimizer adamw-4bit:torchao --attention auto", seconds=110),
    *(Job(words.replace(".py ", "-").replace(" ", "-"), "", words, "program") for words in PROGRAMS),
    Job("taken-oom", "llama-1b", LIMITED, flags="--left-mib 29500", alone=True),
    Job("taken-retry", "llama-1b", LIMITED, flags="--left-mib 31300", alone=True),
]


def needs():
    path = FOLDER / "needs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def command(job, folder, vramfit):
    """Its words; without a launcher of ranks, the script alone."""
    words = [sys.executable]
    if job.launcher == "torchrun":
        words += ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    words += [FOLDER / "card_job.py", *shlex.split(job.flags), "--more", json.dumps(job.more or {}), job.kind, folder / "result", "--"]
    if job.config:
        (folder / "config.json").write_text(json.dumps(CONFIGS[job.config]), encoding="utf-8")
        words += ["--config", folder / "config.json"]
    words += shlex.split(job.words)
    if vramfit:
        words = [vramfit, "rehearse", "--gpus", f"1x{CARD}", "-o", folder / "rehearsal.json", "--", *words]
    return [str(word) for word in words]


def environment(job):
    changes = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "4"}
    if job.allocator == "expandable":
        changes["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return {**os.environ, **changes}


class Running:
    def __init__(self, job, folder, vramfit):
        self.job, self.folder, self.start = job, folder, time.monotonic()
        folder.mkdir()
        (folder / "tmp").mkdir()
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command(job, folder, vramfit), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=folder,
                                            env={**environment(job), "HF_HOME": str(folder / "tmp")})

    def age(self):
        return time.monotonic() - self.start

    def is_done(self, late):
        if self.process.poll() is not None:
            return True
        if self.age() < self.job.seconds and not late:
            return False
        self.end(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.end(signal.SIGKILL)
            self.process.wait()
        return True

    def end(self, number):
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def report(self):
        result = self.folder / "result.json"
        found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"error": (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-4000:]}
        return {"name": self.job.name, "code": self.process.returncode, "wall_seconds": round(self.age(), 1), "began": round(self.start - BEGIN, 1), **found}


BEGIN = time.monotonic()


def keep(out, running):
    report = running.report()
    with open(out / "jobs.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(report) + "\n")
    events = running.folder / "result.events"
    if events.exists():
        with gzip.open(out / "events.gz", "ab") as file:
            file.write(f"@ {running.job.name}\n".encode() + events.read_bytes())
    steps = report.get("steps", [])
    peak = max((step["peak_reserved"] for step in steps), default=0)
    note = "out of memory" if "out_of_memory" in report else report["error"][-300:] if "error" in report else ""
    print(f"{time.monotonic() - BEGIN:6.1f} s  {running.job.name}: {peak / 2**30:.3f} GiB, {report['wall_seconds']} s, code {report['code']} {note}", flush=True)
    for path in running.folder.glob("weights/*"):  # gigabytes of a base in 4 bits
        path.unlink()


def play(jobs, options):
    found, waiting, running = needs(), list(jobs), []
    room_gib = 1e9 if options.rehearse else ROOM_GIB

    def gib_of(job):
        return found.get(job.name, job.gib) + CONTEXT_GIB

    while waiting or running:
        late = time.monotonic() - BEGIN > options.seconds
        if late:
            for job in waiting:
                print(f"not begun: {job.name}", flush=True)
            waiting = []
        for one in [one for one in running if one.is_done(late)]:
            running.remove(one)
            keep(options.out, one)
        for job in list(waiting):
            is_full = len(running) >= options.jobs or sum(gib_of(one.job) for one in running) + gib_of(job) > room_gib
            if is_full or any(one.job.alone for one in running) or (job.alone and running):
                continue
            waiting.remove(job)
            running.append(Running(job, pathlib.Path(options.scratch, job.name), options.rehearse))
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rehearse", metavar="VRAMFIT", help="the program, which plays the jobs on a phantom GPU")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--only", default="", help="names, a regular expression")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which none begins and those that run are ended")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cards-") as options.scratch:
        play([job for job in JOBS if re.fullmatch(options.only or ".*", job.name)], options)
    print(f"done in {time.monotonic() - BEGIN:.1f} s")


if __name__ == "__main__":
    main()
