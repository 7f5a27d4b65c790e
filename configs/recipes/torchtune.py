# recipe: fine-tuning by torchtune's own recipes; with FSDP2 on several GPUs, with LoRA by --lora-rank
# libraries: torch>=2.6 torchtune==0.6.1 torchao>=0.9,<0.16
# launch: python torchrun
import json
import os
import pathlib
import runpy
import sys

import torch
import torchtune
from omegaconf import OmegaConf

MODEL = "model"  # --model
SEQ_LEN = 1024  # --seq-len
MICRO_BATCH = 1  # --micro-batch
GRAD_ACCUM = 1  # --grad-accum
PRECISION = "bf16-pure"  # --precision fp32|bf16-pure
GRADIENT_CHECKPOINTING = "off"  # --gradient-checkpointing on|off
OPTIMIZER = "AdamW"  # --optimizer AdamW|Adam|SGD|Adagrad|RMSprop|NAdam|RAdam|AdamW8bit|PagedAdamW|PagedAdamW8bit
OPTIMIZER_IN_BACKWARD = "off"  # --optimizer-in-backward on|off
LORA_RANK = 0  # --lora-rank
ROTARY_POSITIONS = 0  # --rotary-positions
STEPS = 3  # --steps

HERE = pathlib.Path(__file__).resolve().parent
COMPONENTS = pathlib.Path(__file__).stem  # this file, from which torchtune imports Tokens and Tokenizer
# transformers' model_type: (torchtune's builder, what its checkpointer calls the family)
FAMILIES = {
    "llama": ("torchtune.models.llama3_2.llama3_2", "LLAMA3_2"),
    "mistral": ("torchtune.models.mistral.mistral", "MISTRAL"),
    "qwen2": ("torchtune.models.qwen2.qwen2", "QWEN2"),
    "phi3": ("torchtune.models.phi3.phi3", "PHI3_MINI"),
    "gemma": ("torchtune.models.gemma.gemma", "GEMMA"),
    "gemma2": ("torchtune.models.gemma2.gemma2", "GEMMA2"),
}


class Tokenizer:
    pad_id = 0


class Tokens(torch.utils.data.Dataset):
    """Sequences of full length, of random tokens."""

    def __init__(self, tokenizer, vocabulary):
        self.vocabulary = vocabulary

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        tokens = torch.randint(0, self.vocabulary, (SEQ_LEN,), generator=torch.Generator().manual_seed(index)).tolist()
        return {"tokens": tokens, "labels": tokens}


def model_config(hugging_face):
    """The same model, built by torchtune."""
    kind, tied = hugging_face["model_type"], hugging_face.get("tie_word_embeddings", False)
    if kind not in FAMILIES or (kind in ("mistral", "phi3") and tied):
        sys.exit(f"this script has no builder of torchtune's for {kind}{' with tied embeddings' if tied else ''} (known: {', '.join(FAMILIES)})")
    is_older = kind == "llama" and not tied and not is_scaled(hugging_face)
    if not kind.startswith("gemma") and hugging_face.get("head_dim") not in (None, hugging_face["hidden_size"] // hugging_face["num_attention_heads"]):
        sys.exit("torchtune's builders have heads of hidden_size / num_attention_heads alone")
    config = {
        "_component_": "torchtune.models.llama3.llama3" if is_older else FAMILIES[kind][0],
        "vocab_size": hugging_face["vocab_size"],
        "num_layers": hugging_face["num_hidden_layers"],
        "num_heads": hugging_face["num_attention_heads"],
        "num_kv_heads": hugging_face["num_key_value_heads"],
        "embed_dim": hugging_face["hidden_size"],
        "intermediate_dim": hugging_face["intermediate_size"],
        "max_seq_len": ROTARY_POSITIONS or SEQ_LEN,
    }
    if kind.startswith("gemma"):
        config["head_dim"] = hugging_face["head_dim"]
    elif kind not in ("mistral", "phi3") and not is_older:
        config["tie_word_embeddings"] = tied
    if kind == "gemma2":
        config |= {"sliding_window_size": hugging_face["sliding_window"], "query_pre_attn_scalar": hugging_face["query_pre_attn_scalar"]}
    return with_adapters(config) if LORA_RANK > 0 else config


def is_scaled(hugging_face):
    """Whether rotations are those of Llama 3.1 and later ones."""
    rope = hugging_face.get("rope_parameters") or hugging_face.get("rope_scaling") or {}
    return rope.get("rope_type", rope.get("type")) == "llama3"


def with_adapters(config):
    """The same with LoRA around all linears but the output layer."""
    package, _, builder = config["_component_"].rpartition(".")
    return {
        **config,
        "_component_": f"{package}.lora_{builder}",
        "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "lora_rank": LORA_RANK,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
    }


def training_config():
    """Of all weights; of adapters with what their recipes want beside."""
    config = common_config()
    if LORA_RANK > 0:
        config.lr_scheduler = {"_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "num_warmup_steps": 100}
    return config


def common_config():
    hugging_face = json.loads(pathlib.Path(MODEL, "config.json").read_text(encoding="utf-8"))
    optimizers = "bitsandbytes.optim" if OPTIMIZER.startswith("Paged") or OPTIMIZER.endswith("8bit") else "torch.optim"
    return OmegaConf.create({
        "output_dir": str(HERE / "output"),
        "model": model_config(hugging_face),
        "tokenizer": {"_component_": f"{COMPONENTS}.Tokenizer"},
        "dataset": {"_component_": f"{COMPONENTS}.Tokens", "vocabulary": hugging_face["vocab_size"]},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": MODEL,
            "checkpoint_files": sorted(path.name for path in pathlib.Path(MODEL).glob("*.safetensors")),
            "output_dir": str(HERE / "output"),
            "model_type": FAMILIES[hugging_face["model_type"]][1],
        },
        "resume_from_checkpoint": False,
        "seed": 0,
        "shuffle": False,
        "batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": GRAD_ACCUM,
        "epochs": 1,
        "max_steps_per_epoch": STEPS,
        "optimizer": {"_component_": f"{optimizers}.{OPTIMIZER}", "lr": 2e-5, **({"fused": True} if OPTIMIZER == "AdamW" else {"momentum": 0.9} if OPTIMIZER == "SGD" else {})},
        "optimizer_in_bwd": OPTIMIZER_IN_BACKWARD == "on",
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "clip_grad_norm": None,
        "compile": False,
        "device": "cuda",
        "dtype": "fp32" if PRECISION == "fp32" else "bf16",
        "enable_activation_checkpointing": GRADIENT_CHECKPOINTING == "on",
        "enable_activation_offloading": False,
        # FSDP2 must not shard embeddings apart from the layer that shares their weight.
        "custom_sharded_layers": None if hugging_face.get("tie_word_embeddings", False) else ["tok_embeddings", "output"],
        "metric_logger": {"_component_": "torchtune.training.metric_logging.StdoutLogger"},
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
    })


def main():
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    kind, recipe = ("lora", "LoRAFinetuneRecipe") if LORA_RANK > 0 else ("full", "FullFinetuneRecipe")
    file, name = ("distributed", "Distributed") if several else ("single_device", "SingleDevice")
    recipes = pathlib.Path(torchtune.__file__).parent.parent / "recipes"
    base = runpy.run_path(str(recipes / f"{kind}_finetune_{file}.py"))[recipe + name]
    config = training_config()
    training = base(cfg=config)
    training.setup(cfg=config)
    # To save the trained model, remove these lines.
    if several and LORA_RANK == 0:
        training._checkpoint_client.save_checkpoint = lambda **_: None
    else:
        training.save_checkpoint = lambda **_: None
    training.train()
    training.cleanup()


if __name__ == "__main__":
    main()
