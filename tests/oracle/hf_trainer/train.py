"""Trains a model with transformers' Trainer, as its users write it, and writes what the caching allocator did.

For a phantom GPU. `--events FILE`: every allocation and free with size, stream and step, one JSON array a line.
"""

import argparse
import gc
import json
import os
import pathlib
import sys
import types

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, BitsAndBytesConfig, DataCollatorWithFlattening, Trainer, TrainingArguments
from transformers.initialization import no_init_weights

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from event_log import EventLog, peaks  # noqa: E402


OPTIMIZERS = {"adamw:fused": "adamw_torch_fused", "adamw:foreach": "adamw_torch", "adamw-8bit": "adamw_bnb_8bit",
              "adamw:deepspeed": "adamw_torch", "adafactor": "adafactor", "sgd": "sgd", "adamw-8bit:torchao": "adamw_torch_8bit", "adamw-4bit:torchao": "adamw_torch_4bit", "adamw:paged": "paged_adamw_32bit", "adamw-8bit:paged": "paged_adamw_8bit"}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16-pure", "bf16-mixed", "fp16-mixed"], default="bf16-mixed")
    parser.add_argument("--storage", choices=["fp32", "bf16"], default="fp32", help="of the weights under bf16-mixed")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adamw:fused")
    parser.add_argument("--checkpointing", choices=["none", "full"], default="none")
    parser.add_argument("--use-reentrant", choices=["default", "on", "off"], default="default", help="of gradient_checkpointing_kwargs")
    parser.add_argument("--find-unused", choices=["default", "on", "off"], default="default", help="ddp_find_unused_parameters")
    parser.add_argument("--lora-rank", type=int, default=0, help="adapters by PEFT; 0: none")
    parser.add_argument("--lora-dropout", type=float, default=0)
    parser.add_argument("--lora-targets", default="all-linear")
    parser.add_argument("--dora", action="store_true", help="adapters with magnitudes")
    parser.add_argument("--frozen-dtype", choices=["bf16", "fp16", "fp32"], default="bf16", help="of the base under adapters")
    parser.add_argument("--quantization", choices=["none", "nf4", "nf4-double"], default="none", help="of the base, by bitsandbytes")
    parser.add_argument("--attention", choices=["flash", "auto", "math", "flash-attn"], default="flash", help="auto: as PyTorch picks, which prefers cuDNN on some cards; math: eager, the library's own code; flash-attn: that package (flash_attention_2)")
    parser.add_argument("--fsdp", choices=["none", "full-shard", "shard-grad-op", "hybrid-shard", "hybrid-shard-zero2"], default="none", help="FSDP2 as accelerate sets it up, on the ranks of torchrun")
    parser.add_argument("--fsdp-version", type=int, choices=[1, 2], default=2, help="1: FSDP1 as accelerate's YAML files have it")
    parser.add_argument("--backward-prefetch", choices=["pre", "post", "none"], default="pre", help="of FSDP1")
    parser.add_argument("--forward-prefetch", action="store_true", help="of FSDP1")
    parser.add_argument("--checkpointed-by", choices=["layers", "fsdp"], default="layers", help="gradient_checkpointing, or activation_checkpointing of fsdp_config")
    parser.add_argument("--offload", type=lambda text: text.split(","), default=["none"], help="params: cpu_offload of fsdp_config, or DeepSpeed's offload_param and offload_optimizer; optimizer: offload_optimizer alone; either with :pageable: pin_memory off; or one of each, separated by a comma")
    parser.add_argument("--zero", type=int, choices=[0, 1, 2, 3], default=0, help="the stage of DeepSpeed's ZeRO; 0: without DeepSpeed")
    parser.add_argument("--bucket", type=int, default=500_000_000, help="DeepSpeed's reduce_bucket_size, in elements; 0: auto")
    parser.add_argument("--overlap", choices=["default", "on", "off"], default="default", help="DeepSpeed's overlap_comm, which ZeRO-3 alone has on by default")
    parser.add_argument("--sizes", nargs="*", default=[], metavar="KEY=VALUE", help="of ZeRO-3, as DeepSpeed's configuration calls them; the Trainer fills in auto")
    parser.add_argument("--liger", type=json.loads, metavar="JSON", help="use_liger_kernel, with this liger_kernel_config")
    parser.add_argument("--axolotl", nargs="*", default=[], choices=["mlp", "qkv", "o"], help="linears that its kernels compute")
    parser.add_argument("--axolotls-fsdp", action="store_true", help="FSDP2 as axolotl sets it up in accelerate's place")
    parser.add_argument("--packing", choices=["none", "wrapped", "bfd"], default="none", help="packing_strategy of SFTTrainer; of the Trainer: bfd has rows of documents with their positions, and no mask")
    parser.add_argument("--max-grad-norm", type=float, default=1, help="0: no clipping")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--events", help="file for every allocation and free")
    return parser.parse_args(arguments)


class Texts(torch.utils.data.Dataset):
    """Full rows: nothing is padded."""

    def __init__(self, sequence):
        self.ids = torch.zeros(sequence, dtype=torch.int64)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, _):
        return {"input_ids": self.ids, "attention_mask": torch.ones_like(self.ids), "labels": self.ids}


class Documents(DataCollatorWithFlattening):
    """One row of all that it is given, with positions that begin anew in each document. A single row is two documents."""

    def __call__(self, rows, **options):
        if len(rows) == 1:
            ids = rows[0]["input_ids"]
            half = (len(ids) + 1) // 2
            rows = [{"input_ids": part, "labels": part} for part in (ids[:half], ids[half:])]
        return super().__call__([{"input_ids": row["input_ids"], "labels": row["labels"]} for row in rows], **options)


class Marks:
    """A trainer that marks where a step begins: with fetching its micro-batches."""

    events, steps = None, 0

    def get_batch_samples(self, *arguments):
        self.steps += 1
        if self.events:
            self.events.mark(f"step {self.steps}")
        return super().get_batch_samples(*arguments)

    def _finalize_training(self, *arguments):
        if self.events:
            self.events.mark("end")
        return super()._finalize_training(*arguments)


class Marked(Marks, Trainer):
    pass


def is_masked(config):
    return any(name.endswith("ForMaskedLM") for name in config.architectures)


def built(config, dtype):
    """Its weights have no values: to draw them takes seconds, and nothing on phantom GPUs depends on them."""
    with no_init_weights():
        model = (AutoModelForMaskedLM if is_masked(config) else AutoModelForCausalLM).from_config(config, dtype=dtype)
    model.tie_weights()
    return model


def storage_of(options):
    return torch.bfloat16 if "bf16" in (options.storage, options.precision.removesuffix("-pure")) else torch.float32


def adapters_of(options, task="CAUSAL_LM"):
    targets = options.lora_targets if options.lora_targets == "all-linear" else options.lora_targets.split(",")
    return LoraConfig(r=options.lora_rank, lora_alpha=16, lora_dropout=options.lora_dropout, target_modules=targets, task_type=task, use_dora=options.dora)


def base_of(options, quantize=None):
    """The model without adapters; `quantize` is what makes 4 bits of it, if not this script's own way."""
    config = AutoConfig.from_pretrained(options.config, **attention_of(options))
    if options.lora_rank == 0:
        return built(config, storage_of(options))
    model = built(config, DTYPES[options.frozen_dtype] if options.precision != "fp32" else torch.float32)
    return (quantize or quantized)(model, options) if options.quantization != "none" else model


def base_before_arguments(options, quantize=None):
    """One in 4 bits, which ZeRO-3's arguments would have no weights to write for, nor ranks but the first; otherwise None."""
    return base_of(options, quantize) if options.lora_rank and options.quantization != "none" else None


def model_of(options):
    if options.axolotl:
        from axolotl_kernels import with_kernels
        return with_kernels(options.config, options.axolotl, options.liger, lambda: adapted_model_of(options))
    return adapted_model_of(options)


def adapted_model_of(options):
    if options.lora_rank == 0:
        return base_of(options)
    base = base_of(options)
    return get_peft_model(base, adapters_of(options, None if is_masked(base.config) else "CAUSAL_LM"), autocast_adapter_dtype=storage_of(options) == torch.float32)


def attention_of(options):
    name = {"math": "eager", "flash-attn": "flash_attention_2"}.get(options.attention)
    return {} if name is None else {"attn_implementation": name}


def loaded_in_4_bits(model, options, dtype):
    """The model as bitsandbytes loads it from a checkpoint; what it doesn't quantize is of `dtype`. FSDP2 shards floating dtypes alone, and accelerate leaves bytes whole."""
    folder = pathlib.Path(options.config).parent / "weights"
    compute = torch.float16 if options.precision == "fp16-mixed" else torch.bfloat16
    model.to(compute).save_pretrained(folder)
    sharded = {} if options.fsdp == "none" else {"bnb_4bit_quant_storage": compute}
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=options.quantization == "nf4-double", bnb_4bit_compute_dtype=compute, **sharded)
    return type(model).from_pretrained(folder, dtype=dtype, quantization_config=how, device_map={"": 0 if options.fsdp == "none" or options.axolotls_fsdp else "cpu"}, **attention_of(options))


def quantized(model, options):
    model = loaded_in_4_bits(model, options, torch.float16 if options.precision == "fp16-mixed" else torch.bfloat16)
    if options.frozen_dtype != "fp32":
        return model
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=options.checkpointing == "full")


def fsdp_of(options):
    if options.fsdp == "none":
        return {}
    if options.fsdp_version == 1:
        return fsdp1_of(options)
    if options.axolotls_fsdp:
        from axolotl_kernels import take_over_fsdp
        take_over_fsdp(options.quantization != "none")
    if options.offload == ["params"]:  # what `accelerate launch` sets; without it there is no process group for tensors on the host
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true", "FSDP_VERSION": "2"}
    by_fsdp = options.checkpointing == "full" and options.checkpointed_by == "fsdp"
    return {"fsdp": True, "fsdp_config": {"reshard_after_forward": options.fsdp == "full-shard", "activation_checkpointing": by_fsdp, "cpu_offload": options.offload == ["params"]}}


def fsdp1_of(options):
    """What `accelerate launch` sets for a YAML file with `fsdp_version: 1`, as `accelerate config` writes it; the Trainer has no argument for it."""
    by_fsdp = options.checkpointing == "full" and options.checkpointed_by == "fsdp"
    prefetch = "NO_PREFETCH" if options.backward_prefetch == "none" else f"BACKWARD_{options.backward_prefetch.upper()}"
    os.environ |= {
        "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "1", "FSDP_SHARDING_STRATEGY": options.fsdp.upper().replace("-", "_"),
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_BACKWARD_PREFETCH": prefetch, "FSDP_FORWARD_PREFETCH": str(options.forward_prefetch).lower(), "FSDP_USE_ORIG_PARAMS": "true",
        "FSDP_SYNC_MODULE_STATES": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "FSDP_OFFLOAD_PARAMS": str(options.offload == ["params"]).lower(), "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_ACTIVATION_CHECKPOINTING": str(by_fsdp).lower()}
    return {}


def replace_fused_adam():
    """By a stand-in that computes nothing: DeepSpeed compiles it with nvcc, and on the card its kernel allocates nothing."""
    from deepspeed.ops.op_builder import FusedAdamBuilder
    FusedAdamBuilder.load = lambda self, verbose=True: types.SimpleNamespace(multi_tensor_adam=lambda *arguments: None)


def deepspeed_of(options):
    """What is not named is DeepSpeed's default."""
    if options.zero == 0:
        return {}
    more = {}
    if options.optimizer == "adamw:deepspeed":
        more["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
        if options.offload == ["none"]:
            replace_fused_adam()
    names = ("gradient_clipping", "gradient_accumulation_steps", "train_micro_batch_size_per_gpu", "train_batch_size")
    zero = {"stage": options.zero, "reduce_bucket_size": options.bucket or "auto"}
    if options.overlap != "default":
        zero["overlap_comm"] = options.overlap == "on"
    for key, value in (size.split("=") for size in options.sizes):
        zero[key] = value if value == "auto" else int(value)
    offloads = {kind.split(":")[0]: {"device": "cpu", **({"pin_memory": False} if kind.endswith(":pageable") else {})} for kind in options.offload if kind != "none"}
    if offloads:
        zero["offload_optimizer"] = offloads.get("optimizer") or dict(offloads["params"])
    if "params" in offloads:
        zero["offload_param"] = offloads["params"]
    return {"deepspeed": {"zero_optimization": zero, "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, **more, **{name: "auto" for name in names}}}


def settings_of(options):
    """Arguments of TrainingArguments."""
    return {
        "output_dir": str(pathlib.Path(options.config).parent / "checkpoints"), "report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1000, "dataloader_pin_memory": False,
        "per_device_train_batch_size": options.batch, "gradient_accumulation_steps": options.accumulation, "max_steps": options.steps,
        "gradient_checkpointing": options.checkpointing == "full" and options.checkpointed_by == "layers",
        **({} if options.use_reentrant == "default" else {"gradient_checkpointing_kwargs": {"use_reentrant": options.use_reentrant == "on"}}),
        **({} if options.liger is None or options.axolotl else {"use_liger_kernel": True, "liger_kernel_config": options.liger}),
        **({} if options.find_unused == "default" else {"ddp_find_unused_parameters": options.find_unused == "on"}),
        "max_grad_norm": options.max_grad_norm, "bf16": options.precision == "bf16-mixed", "fp16": options.precision == "fp16-mixed", "optim": OPTIMIZERS[options.optimizer], **({"optim_args": "momentum=0.9"} if options.optimizer == "sgd" else {}), **fsdp_of(options), **deepspeed_of(options)}


def run(options, make_trainer):
    """Trains with what `make_trainer` returns for the options, and writes the events."""
    gc.disable()
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.backends.cuda.enable_cudnn_sdp(options.attention != "flash")
    log = EventLog() if options.events else None
    if log:
        log.mark("load")
    trainer = make_trainer(options)
    trainer.events = log
    trainer.train()
    if log:
        log.write(options.events)
    print(json.dumps(peaks()))


def trainer_of(options):
    rows = {"train_dataset": Texts(options.sequence), **({} if options.packing == "none" else {"data_collator": Documents()})}
    if options.zero == 3 and options.quantization == "none":  # arguments come first, so that parameters are parted as they are made
        arguments = TrainingArguments(**settings_of(options))
        return Marked(model=model_of(options), args=arguments, **rows)
    return Marked(model=model_of(options), args=TrainingArguments(**settings_of(options)), **rows)


if __name__ == "__main__":
    run(parse(sys.argv[1:]), trainer_of)
