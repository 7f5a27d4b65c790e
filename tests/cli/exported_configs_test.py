"""Files that `vramfit export` writes are loaded by the tools' own parsers, with the values that the plan has.

accelerate and transformers are packages of the tests. TRL and DeepSpeed are those of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt), torchtitan is that of $VRAMFIT_PROGRAMS_PYTHON (requirements-programs.txt), torchtune that of
$VRAMFIT_TORCHTUNE_PYTHON (requirements-torchtune.txt), and axolotl (0.19) that of $VRAMFIT_AXOLOTL_PYTHON; without them their cases are skipped.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.path.abspath(os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit"))
MODEL = "meta-llama/Llama-3.2-1B"


def program(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def exported(folder, tool, gpus, *flags, model=MODEL):
    """The folder with the tool's files for a plan that these flags leave no choice."""
    plan = os.path.join(folder, "plan.json")
    program("plan", model, "--gpus", gpus, "--seq-len", "1024", "--micro-batch", "2", "--grad-accum", "4", *flags, "-o", plan)
    files = pathlib.Path(folder, tool)
    program("export", plan, "--to", tool, "-o", str(files))
    return files


def parsed(variable, code, name, export, *arguments, model=MODEL):
    """What `code` prints, run by another Python on the file `name` of an export: a tool, GPUs and flags."""
    python = os.environ.get(variable)
    if not python:
        raise unittest.SkipTest(f"{variable} names no Python")
    with tempfile.TemporaryDirectory() as folder:
        file = exported(folder, *export, model=model) / name
        done = subprocess.run([python, "-c", code, str(file), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("RESULT ")[-1].split()


class Exported(unittest.TestCase):
    def test_accelerate_loads_its_configuration(self):
        from accelerate.commands.config.config_args import load_config_from_file
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "accelerate", "4xRTX4090", "--checkpointing", "full", "--sharding", "shard-grad-op", "--precision", "bf16-mixed")
            config = load_config_from_file(str(file / "accelerate.yaml"))
        self.assertEqual((config.num_processes, config.mixed_precision, config.distributed_type), (4, "bf16", "FSDP"))
        self.assertEqual(config.fsdp_config["fsdp_version"], 2)
        self.assertIs(config.fsdp_config["fsdp_reshard_after_forward"], False)
        self.assertIs(config.fsdp_config["fsdp_activation_checkpointing"], True)

    def test_accelerate_loads_replicas_and_one_gpu(self):
        from accelerate.commands.config.config_args import load_config_from_file
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "accelerate", "2x2xH100-80GB", "--sharding", "hybrid-shard", "--precision", "bf16-mixed")
            config = load_config_from_file(str(file / "accelerate.yaml"))
            self.assertEqual(config.parallelism_config, {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 2})
            self.assertEqual((config.num_machines, config.num_processes), (2, 4))
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "accelerate", "1xH100-80GB", "--precision", "fp32")
            config = load_config_from_file(str(file / "accelerate.yaml"))
            self.assertEqual((config.distributed_type, config.mixed_precision), ("NO", "no"))

    def test_the_trainers_parser_takes_the_arguments(self):
        import yaml
        from transformers import HfArgumentParser, TrainingArguments
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "deepspeed", "1xH100-80GB", "--precision", "bf16-mixed", "--checkpointing", "full", "--optimizer", "adamw-8bit")
            with open(file / "arguments.yaml", encoding="utf-8") as text:
                arguments = yaml.safe_load(text)
        words = [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
        parsed = HfArgumentParser(TrainingArguments).parse_args(words)  # no object of it, which would want DeepSpeed and a GPU
        self.assertEqual((parsed.per_device_train_batch_size, parsed.gradient_accumulation_steps), (2, 4))
        self.assertEqual((parsed.bf16, parsed.fp16, parsed.gradient_checkpointing), (True, False, True))
        self.assertEqual(str(parsed.optim).rsplit(".", maxsplit=1)[-1].lower(), "adamw_bnb_8bit")

    def test_trl_takes_its_arguments(self):
        code = ("import sys; from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser\n"
                "s, t, m = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config(\n"
                "    ['--config', sys.argv[1], '--dataset_name', 'x', '--use_cpu', 'true'])\n"
                "print('RESULT', t.max_length, t.per_device_train_batch_size, t.gradient_accumulation_steps, t.loss_type, m.dtype, m.use_peft, m.lora_r)")
        plan = ["trl", "1xH100-80GB", "--precision", "bf16-mixed", "--method", "lora", "--lora-rank", "32", "--loss", "full"]
        self.assertEqual(parsed("VRAMFIT_RECIPES_PYTHON", code, "sft.yaml", plan), ["1024", "2", "4", "nll", "bfloat16", "True", "32"])

    def test_deepspeed_takes_its_configuration(self):
        code = ("import sys; from deepspeed.runtime.config import DeepSpeedConfig\n"
                "c = DeepSpeedConfig(sys.argv[1])\n"
                "print('RESULT', c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, c.zero_config.stage, c.bfloat16_config.enabled)")
        plan = ["deepspeed", "1xH100-80GB", "--precision", "bf16-mixed", "--sharding", "full-shard"]
        self.assertEqual(parsed("VRAMFIT_RECIPES_PYTHON", code, "ds_config.json", plan), ["2", "4", "3", "True"])

    def test_torchtitan_takes_its_file(self):
        code = ("import sys; from torchtitan.config import ConfigManager\n"
                "c = ConfigManager().parse_args(['--job.config_file', sys.argv[1]])\n"
                "print('RESULT', c.model.name, c.model.flavor, c.training.local_batch_size, c.training.global_batch_size, c.training.seq_len,\n"
                "      c.training.dtype, c.training.mixed_precision_param, c.training.enable_cpu_offload,\n"
                "      c.parallelism.data_parallel_replicate_degree, c.parallelism.data_parallel_shard_degree,\n"
                "      c.parallelism.fsdp_reshard_after_forward, c.activation_checkpoint.mode, c.activation_checkpoint.selective_ac_option,\n"
                "      c.optimizer.name, c.optimizer.implementation, c.optimizer.early_step_in_backward)")
        plan = ["torchtitan", "2x4xH100-80GB", "--precision", "bf16-mixed", "--sharding", "hybrid-shard-zero2", "--checkpointing", "every:2"]
        self.assertEqual(parsed("VRAMFIT_PROGRAMS_PYTHON", code, "torchtitan.toml", plan, model="meta-llama/Llama-3.1-8B"),
                         ["llama3", "8B", "2", "64", "1024", "float32", "bfloat16", "False", "2", "4", "never", "selective", "2", "AdamW",
                          "fused", "False"])

    def test_torchtune_takes_its_file(self):
        code = ("import pathlib, sys, torchtune; from omegaconf import OmegaConf; from torchtune.config import validate\n"
                "recipes = pathlib.Path(torchtune.__file__).parent.parent / 'recipes'\n"
                "own, made = OmegaConf.load(recipes / 'configs' / sys.argv[2]), OmegaConf.load(sys.argv[1])\n"
                "recipe = (recipes / sys.argv[3]).read_text()\n"
                "c = OmegaConf.merge(own, made)\n"
                "validate(c)\n"
                "print('RESULT', sum(key not in own and f'\"{key}\"' not in recipe for key in made), c.model._component_, c.tokenizer.max_seq_len,\n"
                "      c.batch_size, c.gradient_accumulation_steps, c.dtype, c.enable_activation_checkpointing, c.get(sys.argv[4], c.model.get(sys.argv[4])))")
        whole = ["torchtune", "4xH100-80GB", "--precision", "bf16-pure", "--sharding", "shard-grad-op", "--checkpointing", "full"]
        self.assertEqual(parsed("VRAMFIT_TORCHTUNE_PYTHON", code, "torchtune.yaml", whole, "llama3_2/1B_full.yaml", "full_finetune_distributed.py",
                                "fsdp_reshard_after_forward"),
                         ["0", "torchtune.models.llama3_2.llama3_2_1b", "1024", "2", "4", "bf16", "True", "False"])
        lora = ["torchtune", "1xH100-80GB", "--precision", "bf16-pure", "--method", "lora", "--lora-rank", "32", "--frozen-dtype", "bf16"]
        self.assertEqual(parsed("VRAMFIT_TORCHTUNE_PYTHON", code, "torchtune.yaml", lora, "llama3_2/1B_lora_single_device.yaml",
                                "lora_finetune_single_device.py", "lora_rank"),
                         ["0", "torchtune.models.llama3_2.lora_llama3_2_1b", "1024", "2", "4", "bf16", "False", "32"])

    def test_axolotl_takes_its_file(self):
        code = ("import sys, yaml; from axolotl.utils.schemas.config import AxolotlInputConfig\n"
                "raw = yaml.safe_load(open(sys.argv[1]))\n"
                "assert set(raw) <= set(AxolotlInputConfig.model_fields), set(raw) - set(AxolotlInputConfig.model_fields)\n"
                "raw.update(datasets=[{'path': 'x', 'type': 'alpaca'}], learning_rate=1e-5, num_epochs=1, lr_scheduler='cosine')\n"
                "c = AxolotlInputConfig(**raw)\n"
                "print('RESULT', c.base_model, c.micro_batch_size, c.sequence_len, c.gradient_accumulation_steps, c.bf16, c.optimizer,\n"
                "      c.gradient_checkpointing, c.adapter, c.lora_r, c.lora_target_linear, c.fsdp_config and c.fsdp_config.reshard_after_forward)")
        whole = ["axolotl", "4xH100-80GB", "--precision", "bf16-mixed", "--storage-dtype", "bf16", "--state-dtype", "bf16", "--sharding", "shard-grad-op", "--checkpointing", "full"]
        self.assertEqual(parsed("VRAMFIT_AXOLOTL_PYTHON", code, "axolotl.yaml", whole),
                         [MODEL, "2", "1024", "4", "True", "adamw_torch_fused", "True", "None", "None", "None", "False"])
        lora = ["axolotl", "1xH100-80GB", "--precision", "bf16-mixed", "--method", "lora", "--lora-rank", "32", "--frozen-dtype", "bf16", "--checkpointing",
                "none"]
        self.assertEqual(parsed("VRAMFIT_AXOLOTL_PYTHON", code, "axolotl.yaml", lora)[5:],
                         ["adamw_torch_fused", "False", "lora", "32", "True", "None"])


if __name__ == "__main__":
    unittest.main()
