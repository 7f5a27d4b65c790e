"""No option is void with any stack: void_options_test.py's walk over jobs of the libraries that CI leaves out."""

import unittest

from options_test import MODEL, job_flags, values_of
from void_options_test import estimate_of, is_void, program_of

ONE, TWO, FOUR = ((MODEL, "--gpus", f"{cards}xH100-80GB", "--seq-len", "512", "--stack") for cards in (1, 2, 4))
JOBS = [(*ONE, "transformers", "--method", "qlora"), (*FOUR, "transformers"), (*TWO, "transformers", "--sharding", "no-shard"),
        (*TWO, "transformers", "--runtime", "pytorch-fsdp1"), (*TWO, "trl", "--method", "lora"), (*ONE, "trl-dpo"), (*ONE, "accelerate"),
        (*FOUR, "deepspeed"), (*TWO, "deepspeed", "--sharding", "shard-grad-op", "--method", "lora"), (*TWO, "torchtune"), (*ONE, "torchtune", "--method", "lora")]

# The vocabulary of the small model is too small for that many tokens on a GPU: its embedding's gradient has no rules then.
TOO_MANY_TOKENS = ("--micro-batch", "8")


class Stacks(unittest.TestCase):
    def test_each_value_in_each_job_changes_it_or_is_refused_or_said_to_change_nothing(self):
        for job in JOBS:
            for flag, listed in job_flags().items():
                if flag in job or flag in ("--runtime", "--modeling"):  # these contradict the stack
                    continue
                for value in values_of(flag, listed):
                    if (flag, value) == TOO_MANY_TOKENS:
                        continue
                    with self.subTest(job=job, flag=flag, value=value):
                        self.assertFalse(is_void(job, flag, value))

    def test_each_part_of_liger_changes_what_a_trainer_does_or_is_refused(self):
        whole = "fused_linear_cross_entropy=off"  # a reward model works with that alone
        for stack in ("transformers", "deepspeed", "trl", "trl-dpo", "trl-reward"):
            job = (*ONE, stack, "--kernels")
            usual = program_of(*job, f"liger:{whole}")
            for part in ("rope=off", "rms_norm=off", "swiglu=off", "geglu=off", "cross_entropy=on"):
                with self.subTest(stack=stack, part=part):
                    said, refusal = estimate_of(*job, f"liger:{part},{whole}")
                    if said is None:
                        self.assertIn(f"--kernels liger:{part.split('=')[0]}", refusal)
                    else:
                        self.assertTrue(program_of(*job, f"liger:{part},{whole}") != usual)

    def test_each_part_of_axolotls_kernels_changes_what_the_trainer_does(self):
        job = (*ONE, "transformers", "--method", "lora", "--kernels")
        usual = program_of(*job, "axolotl")
        for part in ("mlp", "qkv", "o"):
            with self.subTest(part=part):
                self.assertTrue(program_of(*job, f"axolotl:{part}=off") != usual)

    def test_axolotls_kernels_are_estimated_with_zero_1_and_2_that_were_set(self):
        for sharding in ("shard-optimizer", "shard-grad-op"):
            said, refusal = estimate_of(*TWO, "deepspeed", "--method", "lora", "--sharding", sharding, "--kernels", "axolotl")
            self.assertIsNotNone(said, refusal)


if __name__ == "__main__":
    unittest.main()
