"""Loads a checkpoint as users of transformers do, begins to train, and prints what this process took of host memory until then.

For phantom GPUs. Printed is the most of it that no file backs, above what was there before the model was loaded, as JSON.
"""

import argparse
import gc
import json
import os
import pathlib
import threading
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from transformers.models.llama import modeling_llama  # noqa: F401: imported before anything is measured


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True, help="a folder, in which each rank writes a file")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--method", choices=["full", "lora", "qlora"], default="full")
    parser.add_argument("--fsdp", choices=["none", "plain", "efficient", "offload"], default="none", help="efficient: cpu_ram_efficient_loading, as accelerate's launcher sets it")
    parser.add_argument("--zero", type=int, default=0)
    return parser.parse_args()


def anonymous_bytes():
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


class Watch:
    def __init__(self):
        gc.collect()
        self.base = self.most = anonymous_bytes()
        self.is_over = False
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.is_over:
            self.most = max(self.most, anonymous_bytes())
            time.sleep(0.002)

    def end(self):
        self.is_over = True
        self.thread.join()
        return self.most - self.base


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, _):
        ids = torch.zeros(64, dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class EndsWithLoading(Exception):
    pass


class Loaded(Trainer):
    """Weights are where they train once the first micro-batches are asked for."""

    def get_batch_samples(self, *_):
        raise EndsWithLoading


def settings_of(options):
    more = {}
    if options.fsdp != "none":
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
        if options.fsdp == "offload":
            os.environ["FSDP_OFFLOAD_PARAMS"] = "true"
        more = {"fsdp": True, "fsdp_config": {"cpu_ram_efficient_loading": options.fsdp == "efficient", "cpu_offload": options.fsdp == "offload"}}
    if options.zero:
        names = ("gradient_clipping", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size")
        zero = {"stage": options.zero, "reduce_bucket_size": 1_000_000}
        more = {"deepspeed": {"zero_optimization": zero, "bf16": {"enabled": "auto"}, **{name: "auto" for name in names}}}
    return TrainingArguments(output_dir=str(pathlib.Path(options.out) / "run"), report_to=[], save_strategy="no", disable_tqdm=True, max_steps=2, per_device_train_batch_size=1,
                             bf16=True, dataloader_pin_memory=False, **more)


def model_of(options):
    more = {}
    if options.method == "qlora":
        more["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16,
                                                         bnb_4bit_quant_storage=torch.bfloat16)
        if options.fsdp != "none":
            more["device_map"] = {"": "cpu"}
    model = AutoModelForCausalLM.from_pretrained(options.checkpoint, dtype=options.dtype, **more)
    if options.method == "full":
        return model
    return get_peft_model(model, LoraConfig(r=64, target_modules="all-linear", task_type="CAUSAL_LM"))


def main():
    options = parse()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.zeros(8, device="cuda")
    settings = settings_of(options)  # begins the process group
    watch = Watch()
    trainer = Loaded(model=model_of(options), args=settings, train_dataset=Texts())
    # Adapters are small enough for phantom GPUs to keep their contents, in host memory: they are looked at until they move.
    most = watch.most - watch.base if options.method != "full" and options.fsdp != "none" else None
    try:
        trainer.train()
    except EndsWithLoading:
        pass
    most = watch.end() if most is None else most
    path = pathlib.Path(options.out) / f"rank{os.environ.get('RANK', '0')}.json"
    path.write_text(json.dumps(most), encoding="utf-8")


if __name__ == "__main__":
    main()
