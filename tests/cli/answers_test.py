"""Answers lead where they say: the flags that a line names give its figure."""

import json
import os
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")


def program(*arguments):
    return subprocess.run([os.path.join(BIN, "vramfit"), *arguments], capture_output=True, text=True, check=False, timeout=300)


def without_stack(arguments):
    """What was typed, but for its --stack."""
    at = arguments.index("--stack")
    return [*arguments[:at], *arguments[at + 2:]]


class OtherStack(unittest.TestCase):
    """The third line of an estimate, and `--what-if stack=vramfit`."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def follow(self, typed):
        """Tries the flags that the third line names; returns them."""
        answer = json.loads(program("estimate", *typed, "--json").stdout)
        other = answer["other_stacks"][0]
        line = program("estimate", *typed).stdout.splitlines()[2]
        self.assertIn(f"({other['flags']})", line)
        flags, _, without = other["flags"].partition(", without ")
        left = list(without_stack(typed)) if "--stack" in typed else list(typed)
        for flag in without.split(" and ") if without else ():
            at = left.index(flag)
            del left[at:at + 2]
        done = program("estimate", *left, *flags.split(), "--json")
        self.assertTrue(done.stdout, done.stderr)
        there = json.loads(done.stdout)
        self.assertEqual((there["stack"], there["verdict"]), (other["stack"], other["verdict"]))
        self.assertEqual(there["ranks"][there["worst"]]["total_bytes"], other["total_bytes"])
        return other["flags"]

    def test_the_flags_on_the_third_line_give_its_figure(self):
        base = (MODEL, "--seq-len", "256", "--gpus")
        for gpus, stack, *more in (("2xRTX4090", "trl", "--method", "qlora"), ("1xRTX4090", "trl"), ("2xRTX4090", "torchtitan"), ("2xRTX4090", "torchtune"),
                                   ("2xRTX4090", "deepspeed", "--bucket-bytes", "1000000"), ("2xRTX4090", "trl", "--reentrant-checkpoints", "on"),
                                   ("2xRTX4090", "trl", "--checkpointing", "none"), ("1xRTX4090", "vramfit"), ("2xRTX4090", "accelerate"),
                                   ("2xRTX4090", "transformers"), ("2xRTX4090", "torchtune", "--reduce-dtype", "bf16")):
            with self.subTest(f"{gpus} {stack} {more}"):
                flags = self.follow([*base, gpus, "--stack", stack, *more])
                self.assertEqual("--checkpointing full" in flags, stack == "trl" and "--checkpointing" not in more)
        self.assertEqual(self.follow([*base, "1xRTX4090"]), "--stack vramfit")

    def test_those_of_a_file_too(self):
        path = os.path.join(self.folder, "job.yaml")
        for text in ("model_name_or_path: gpt2\nstage: sft\ncutoff_len: 512\nfinetuning_type: lora\n",
                     "model_name_or_path: gpt2\npacking: true\nmax_length: 256\nbf16: true\nper_device_train_batch_size: 1\n"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            for gpus in ("1xRTX4090", "2xRTX4090"):
                self.follow(["--job", path, "--gpus", gpus])
                on_engine = ["--job", path, "--gpus", gpus, "--stack", "vramfit"]
                if gpus == "1xRTX4090":
                    self.follow(on_engine)

    def test_a_change_to_the_engine_names_what_stays(self):
        typed = (MODEL, "--gpus", "2xRTX4090", "--seq-len", "256", "--stack", "trl")
        changed = json.loads(program("estimate", *typed, "--what-if", "stack=vramfit micro_batch=2", "--json").stdout)["what_if"][0]
        self.assertEqual(changed["change"], "--stack vramfit --checkpointing full --micro-batch 2")
        there = json.loads(program("estimate", *without_stack(typed), *changed["change"].split(), "--json").stdout)
        self.assertEqual(changed["total_bytes"], there["ranks"][there["worst"]]["total_bytes"])


if __name__ == "__main__":
    unittest.main()
