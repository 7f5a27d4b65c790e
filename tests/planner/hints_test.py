"""What an answer without a plan says would fit does: each line's flags are tried as they are printed."""

import os
import re
import subprocess
import tempfile
import unittest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
FITS, NO_PLAN = 0, 4
SMALL = ("llama-3.2-1b", "--seq-len", "1024")
LONGEST_LINE = 140  # of those that are no command

# The job, and how lines of its answer begin.
CASES = [
    (("llama-3.1-8b", "--gpus", "4xA100-40GB", "--stack", "deepspeed"), ["--allow method:lora", "--host-memory ", "--gpus 8xA100-40GB"]),
    (("llama-3.1-8b", "--gpus", "4xA100-40GB", "--stack", "transformers"), ["--allow precision:bf16-pure", "--host-memory ", "--gpus 8xA100-40GB"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--sharding", "no-shard"), ["without --sharding no-shard", "--allow method:lora"]),
    (("gpt2", "--gpus", "1xRTX4090@1.7GiB", "--objective", "longest-sequence"), ["--host-memory ", "--gpus "]),
    (("gpt2", "--gpus", "1xRTX4090@2GiB", "--objective", "largest-batch"), ["--host-memory ", "--gpus "]),
    ((*SMALL, "--gpus", "1xRTX4090@8GiB", "--objective", "headroom"), ["--host-memory ", "--gpus 4xRTX4090@8GiB"]),
    ((*SMALL, "--gpus", "2xRTX4090@8GiB,1xRTX4090@8GiB"), ["--host-memory ", "--gpus 4xRTX4090@8GiB"]),
    ((*SMALL, "--gpus", "auto:RTX4090@4GiB", "--global-batch", "2"), ["--host-memory "]),
    ((*SMALL, "--gpus", "1xRTX4090@8GiB,host=2GiB"), ["--gpus 1xRTX4090@8GiB,host=", "--gpus 4xRTX4090@8GiB,host=2GiB"]),
    (("llama-3.1-8b", "--gpus", "8xH100-80GB", "--host-memory", "128GiB", "--stack", "transformers"), ["--allow precision:bf16-pure", "--host-memory "]),
    (("llama-3.1-8b", "--gpus", "1xT4", "--stack", "transformers"), ["--allow frozen-dtype:fp16,method:qlora,seq-len:"]),
    (("llama-3.1-8b", "--gpus", "8xH100-80GB", "--stack", "transformers", "--sharding", "no-shard"), ["--sharding full-shard", "--allow method:lora"]),
    (("llama-3.1-8b", "--gpus", "8xH100-80GB", "--stack", "accelerate", "--sharding", "no-shard", "--precision", "bf16-mixed"), ["--sharding full-shard"]),
    (("llama-3.1-8b", "--gpus", "8xH100-80GB", "--stack", "trl", "--runtime", "pytorch-ddp"), ["--runtime pytorch-fsdp2"]),
    (("--job", "ddp.yaml", "--gpus", "8xH100-80GB"), ["--sharding full-shard"]),
    (("llama-3.1-8b", "--gpus", "8xA100-40GB", "--stack", "deepspeed", "--sharding", "shard-optimizer"), ["without --sharding shard-optimizer"]),
    (("llama-3.1-8b", "--gpus", "1xRTX4090", "--stack", "trl", "--method", "lora", "--seq-len", "2048"), ["--allow method:qlora", "--allow frozen-dtype:bf16"]),
    (("qwen3-8b", "--gpus", "1xRTX4090@16GiB", "--stack", "transformers", "--method", "lora", "--seq-len", "1024"), ["--allow method:qlora"]),
    (("llama-3.1-8b", "--gpus", "1xRTX4090@16GiB", "--stack", "trl", "--method", "lora", "--seq-len", "1024", "--allow", "any"), ["--allow frozen-dtype:bf16,method:qlora"]),
    (("qwen3-4b", "--gpus", "1xT4", "--stack", "vramfit", "--seq-len", "512", "--allow", "optimizer"), ["--allow method:lora"]),
]
# A Trainer's file that names no FSDP and no DeepSpeed: several GPUs have copies.
DDP = "model_name_or_path: Qwen/Qwen2.5-7B\nbf16: true\nper_device_train_batch_size: 1\nmax_length: 2048\n"
UNKNOWN_STACK = ("llama-3.1-8b", "--gpus", "8xH100-80GB", "--checkpointing", "full", "--runtime", "pytorch-fsdp2")


def plan(*arguments):
    return subprocess.run([os.path.join(BIN, "vramfit"), "plan", *arguments], capture_output=True, text=True, check=False, timeout=600)


def estimate(*arguments):
    return subprocess.run([os.path.join(BIN, "vramfit"), "estimate", *arguments], capture_output=True, text=True, check=False, timeout=600)


def hints(answer):
    """The flags of each line of what would fit."""
    lines = answer.split("\nWhat would fit")[1].split("\n\n")[0].splitlines()[1:]
    return [re.split(r"  +", line.strip())[0] for line in lines if line.startswith("  ")]


def followed(arguments, hint):
    """The arguments as a line says: without some, or with others."""
    words = hint.split()
    if words[0] == "without":
        return [each for each in arguments if each not in words[1:]]
    changed = list(arguments)
    if words[0] in changed and words[0] in ("--gpus", "--host-memory", "--runtime", "--sharding"):
        at = changed.index(words[0])
        del changed[at:at + 2]
    return changed + words


class Hints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        with open(os.path.join(folder.name, "ddp.yaml"), "w", encoding="utf-8") as file:
            file.write(DDP)
        self.folder = folder.name

    def placed(self, arguments):
        """The arguments with files of this test's folder."""
        return tuple(os.path.join(self.folder, each) if each.endswith(".yaml") else each for each in arguments)

    def test_each_fits_as_it_is_printed(self):
        for arguments, begins in CASES:
            with self.subTest(" ".join(arguments)):
                done = plan(*self.placed(arguments))
                self.assertEqual(done.returncode, NO_PLAN, done.stderr)
                said = hints(done.stdout)
                for begin in begins:
                    self.assertTrue(any(each.startswith(begin) for each in said), (begin, said))
                for each in said:
                    there = plan(*self.placed(followed(arguments, each)))
                    self.assertEqual(there.returncode, FITS, (each, there.stdout[:300], there.stderr))

    def test_any_finds_what_adapters_need(self):
        done = plan("llama-3.1-8b", "--gpus", "1xRTX4090", "--stack", "trl", "--method", "lora", "--seq-len", "1024", "--allow", "any")
        self.assertEqual(done.returncode, FITS, done.stderr)
        self.assertIn("with --allow frozen-dtype:bf16", done.stdout)

    def test_a_file_whose_ddp_does_not_fit_leads_to_sharding(self):
        job = self.placed(("--job", "ddp.yaml", "--gpus", "8xH100-80GB"))
        said = estimate(*job).stdout
        change = re.search(r"^  --sharding full-shard +([\d.]+) +-[\d.]+  fits$", said, re.M)
        self.assertTrue(change, said)
        self.assertIn(f"\nFITS: {change[1]} of ", "\n" + estimate(*job, "--sharding", "full-shard").stdout)

    def test_sharding_is_offered_by_the_flag_that_asked_for_ddp_and_only_where_it_has_rules(self):
        job = ("llama-3.1-8b", "--gpus", "8xH100-80GB", "--stack", "transformers")
        said = estimate(*job, "--runtime", "pytorch-ddp").stdout
        self.assertIn("\n  --runtime pytorch-fsdp2 ", said)
        self.assertNotIn("--sharding full-shard ", said)
        for others in (("--storage-dtype", "bf16", "--state-dtype", "bf16"), ("--reduce-dtype", "fp32")):
            copied = (*job, "--sharding", "no-shard", *others)
            self.assertEqual(estimate(*job, *others).returncode, 1)
            self.assertNotIn("--sharding full-shard ", estimate(*copied).stdout)
            self.assertNotIn("--sharding full-shard", hints(plan(*copied).stdout))

    def test_the_smallest_need_is_of_the_allocator_with_fewest_fragments(self):
        for job in (("qwen3-4b", "--gpus", "1xRTX4090", "--stack", "transformers"), ("llama-3.1-8b", "--gpus", "4xRTX4090", "--stack", "deepspeed")):
            smallest = re.search(r"\nThe closest: (.*)", plan(*job).stdout)[1]
            self.assertIn("--allocator expandable", smallest)

    def test_the_smallest_need_is_not_above_its_neighbours(self):
        def needs(*arguments):
            return float(re.search(r"the smallest needs ([\d.]+) GiB", plan(*arguments).stdout)[1])

        job = ("llama-3.1-8b", "--gpus", "1xRTX4090")
        for other in (("--checkpointing", "full"), ("--checkpointing", "full", "--loss", "chunked:8")):
            self.assertLessEqual(needs(*job), needs(*job, *other), other)

    def test_the_plan_with_most_headroom_has_the_allocator_with_fewest_fragments(self):
        done = plan("llama-3.2-1b", "--gpus", "2xRTX4090", "--seq-len", "1024", "--objective", "headroom", "--stack", "transformers")
        self.assertEqual(done.returncode, FITS, done.stderr)
        self.assertIn("--allocator expandable", done.stdout.split("\nFlags: ")[1].splitlines()[0])

    def test_another_objective_says_what_would_do_too(self):
        for objective in ("longest-sequence", "largest-batch"):
            said = plan("llama-3.1-70b", "--gpus", "2xRTX4090", "--method", "qlora", "--objective", objective).stdout
            self.assertIn(" even with ", said.splitlines()[0])
            self.assertEqual([re.sub(r"[\d.]+GiB", "SIZE", each) for each in hints(said)], ["--host-memory SIZE", "--gpus 4xRTX4090"])

    def test_what_is_not_modelled_is_said_with_the_command_that_answers(self):
        moe = "Qwen/Qwen3-30B-A3B"
        for arguments, answers in (
                ((moe, "--gpus", "auto:L40S", "--stack", "trl-reward"), "a rehearsal of one configuration answers: vramfit rehearse --recipe trl-reward "
                 f"{moe} --gpus 1xL40S "),
                ((moe, "--gpus", "1xH100-80GB", "--allow", "seq-len", "--deterministic", "--no-clip"),
                 "a rehearsal of your own script answers: vramfit rehearse --gpus 1xH100-80GB -- python train.py"),
                ((moe, "--gpus", "2xH100-80GB,1xH100-80GB", "--reduce-finish", "end"), "vramfit rehearse --gpus 2xH100-80GB -- torchrun --nproc-per-node 2 train.py"),
                (("llama-3.2-1b", "--gpus", "2xH100-80GB", "--stack", "torchtitan"), "your own script answers it: vramfit rehearse --gpus 2xH100-80GB -- "),
                ((moe, "--gpus", "1xH100-80GB"), "for transformers' Trainer it can be planned: --stack transformers")):
            with self.subTest(" ".join(arguments)):
                done = plan(*arguments)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertRegex(done.stderr, r"\Avramfit: not modelled: ")
                self.assertIn(answers, done.stderr)
                self.assertLess(done.stderr.count("vramfit rehearse"), 2)

    def test_where_nothing_would_do_it_is_said_what_was_tried(self):
        done = plan("llama-3.1-8b", "--gpus", "1xRTX4090@1GiB")
        self.assertIn("\nNote: nothing that was tried would do (more of these GPUs, up to 64 nodes; host memory), but cards with more memory would\n", done.stdout)
        self.assertNotIn("--host-memory", done.stdout)

    def test_lines_are_short_and_figures_have_their_origin(self):
        done = plan("llama-3.1-8b", "--gpus", "4xRTX4090", "--tokens", "1B")
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("The closest: ", "Not considered: "))]
        self.assertLessEqual(max(map(len, lines)), LONGEST_LINE, lines)
        for words in (r"What would fit +GiB +tokens/s  \(predicted\)", r"Hours are of 1 B tokens at the predicted speed \(figures of the GPU: \d+ \w+, ", r"Money is [\d.]+ per GPU and hour: \w"):
            self.assertRegex(done.stdout, words)

    def test_tokens_are_counted_in_their_usual_units(self):
        for tokens, words in (("1", "1 token: "), ("2.5M", "2.5 M tokens: "), ("15T", "15 T tokens: ")):
            self.assertIn("\nTraining on " + words, plan("llama-3.2-1b", "--gpus", "1xH100-80GB", "--tokens", tokens).stdout)


class HostMemory(unittest.TestCase):
    def test_too_little_for_loading_is_told_with_what_would_do(self):
        job = ("llama-3.1-8b", "--gpus", "2xL4", "--stack", "torchtune", "--method", "lora")
        done = plan(*job, "--host-memory", "1GiB")
        found = re.search(r"([\d.]+) GiB of host memory a node would do", done.stdout)
        self.assertTrue(found, done.stdout)
        self.assertEqual(plan(*job, "--host-memory", f"{found[1]}GiB").returncode, FITS)

    def test_fsdp1_offloads_parameters(self):
        job = ("llama-3.2-1b", "--gpus", "2xRTX4090@10GiB", "--seq-len", "512", "--stack", "transformers", "--runtime", "pytorch-fsdp1")
        self.assertIn("--host-memory", plan(*job).stdout)
        done = plan(*job, "--host-memory", "64GiB")
        self.assertEqual(done.returncode, FITS, done.stdout)
        self.assertIn("--offload params", done.stdout)


class RuntimeWithoutStack(unittest.TestCase):
    def test_it_is_planned_for_the_trainer_and_other_libraries_are_named(self):
        done = plan(*UNKNOWN_STACK)
        self.assertEqual(done.returncode, FITS, done.stderr)
        self.assertEqual(done.stdout, plan(*UNKNOWN_STACK, "--stack", "transformers").stdout)
        self.assertIn("--runtime pytorch-fsdp2 is planned for --stack transformers; other libraries have it, too: --stack ", done.stderr)
        others = done.stderr.strip().split("--stack ")[-1].split(", ")
        self.assertTrue({"accelerate", "torchtitan", "torchtune"} <= set(others), others)
        for each in ("accelerate", "torchtitan", "torchtune"):
            self.assertEqual(plan(*UNKNOWN_STACK, "--stack", each).returncode, FITS, each)

    def test_deepspeed_is_the_trainers(self):
        done = plan("llama-3.2-1b", "--gpus", "2xH100-80GB", "--runtime", "deepspeed")
        self.assertEqual(done.returncode, FITS, done.stderr)
        self.assertIn("with transformers' Trainer with DeepSpeed", done.stdout)
        self.assertIn("--stack trl-deepspeed, trl-dpo-deepspeed, ", done.stderr)

    def test_a_runtime_that_the_stack_has_changes_none_of_its_other_defaults(self):
        for stack in ("transformers", "accelerate", "torchtune", "torchtitan"):
            job = (*UNKNOWN_STACK, "--stack", stack)
            self.assertEqual(plan(*job).stdout, plan(*job[:-4], *job[-2:]).stdout, stack)


if __name__ == "__main__":
    unittest.main()
