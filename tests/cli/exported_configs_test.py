"""Files that `vramfit export` writes are loaded by the tools' own parsers, with the values that the plan has.

accelerate and transformers are packages of the tests. TRL and DeepSpeed are those of $VRAMFIT_RECIPES_PYTHON
(tests/rehearse/requirements-recipes.txt); without it their cases are skipped.
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


def exported(folder, tool, gpus, *flags):
    """The folder with the tool's files for a plan that these flags leave no choice."""
    plan = os.path.join(folder, "plan.json")
    program("plan", MODEL, "--gpus", gpus, "--seq-len", "1024", "--micro-batch", "2", "--grad-accum", "4", *flags, "-o", plan)
    files = pathlib.Path(folder, tool)
    program("export", plan, "--to", tool, "-o", str(files))
    return files


def elsewhere(variable, code, *arguments):
    """What `code` prints, run by another Python."""
    python = os.environ.get(variable)
    if not python:
        raise unittest.SkipTest(f"{variable} names no Python")
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, timeout=300, check=False)
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
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "trl", "1xH100-80GB", "--precision", "bf16-mixed", "--method", "lora", "--lora-rank", "32", "--loss", "full")
            self.assertEqual(elsewhere("VRAMFIT_RECIPES_PYTHON", code, str(file / "sft.yaml")),
                             ["1024", "2", "4", "nll", "bfloat16", "True", "32"])

    def test_deepspeed_takes_its_configuration(self):
        code = ("import sys; from deepspeed.runtime.config import DeepSpeedConfig\n"
                "c = DeepSpeedConfig(sys.argv[1])\n"
                "print('RESULT', c.train_micro_batch_size_per_gpu, c.gradient_accumulation_steps, c.zero_config.stage, c.bfloat16_config.enabled)")
        with tempfile.TemporaryDirectory() as folder:
            file = exported(folder, "deepspeed", "1xH100-80GB", "--precision", "bf16-mixed", "--sharding", "full-shard")
            self.assertEqual(elsewhere("VRAMFIT_RECIPES_PYTHON", code, str(file / "ds_config.json")), ["2", "4", "3", "True"])


if __name__ == "__main__":
    unittest.main()
