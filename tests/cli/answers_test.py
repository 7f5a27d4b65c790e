"""Answers and messages lead where they say: the flags that a line names give its figure, a plan's file is a job, and what isn't known says what is."""

import json
import os
import re
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
                     "model_name_or_path: gpt2\npacking: true\npacking_strategy: wrapped\nmax_length: 256\nbf16: true\nper_device_train_batch_size: 1\n"):
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


class EngineByRuntime(unittest.TestCase):
    def test_a_question_about_the_engine_by_its_runtime_is_answered(self):
        typed = (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "64", "--runtime", "pytorch", "--modeling", "transformers")
        done = program("estimate", *typed, "--what-if", "runtime=vramfit modeling=vramfit")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--runtime vramfit --modeling vramfit --stack vramfit", done.stdout)


class FilesThatAreNamed(unittest.TestCase):
    def test_one_is_found_above_the_current_folder_too(self):
        with tempfile.TemporaryDirectory() as folder:
            examples = os.path.join(folder, "examples", "llama")
            os.makedirs(examples)
            with open(os.path.join(folder, "examples", "ds.json"), "w", encoding="utf-8") as file:
                file.write('{"zero_optimization": {"stage": 2}}')
            with open(os.path.join(examples, "full.yml"), "w", encoding="utf-8") as file:
                file.write("base_model: gpt2\ndeepspeed: examples/ds.json\n")
            for name in ("full.yml", os.path.join(examples, "full.yml")):
                done = subprocess.run([os.path.abspath(os.path.join(BIN, "vramfit")), "import", name, "--json"], cwd=examples, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["job"]["sharding"], "shard-grad-op", name)


class PlanAsJob(unittest.TestCase):
    def setUp(self):
        self.plan = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "plan.json")

    def test_a_plan_is_a_job_with_its_model_and_cluster(self):
        for stack in ("vramfit", "trl"):
            made = program("plan", "gpt2", "--gpus", "2xRTX4090", "--seq-len", "128", "--stack", stack, "--no-clip", "-o", self.plan)
            self.assertEqual(made.returncode, 0, made.stderr)
            again = program("estimate", "--job", self.plan)
            self.assertEqual(again.stdout.splitlines()[0], made.stdout.splitlines()[0], again.stderr)
            self.assertEqual(re.search(r"^Job: (.*)$", again.stdout, re.M)[1], re.search(r"^Flags: (.*)$", made.stdout, re.M)[1])
            there = program("estimate", "--job", self.plan, "--gpus", "4xRTX4090")
            self.assertEqual(there.returncode, 0, there.stderr)
            self.assertIn("is for 2xRTX4090; its --mesh and --global-batch are left out on 4xRTX4090", there.stderr)
            self.assertIn("/gpt2, 124.4 M parameters", there.stdout)
            alone = program("estimate", "--job", self.plan, "--gpus", "1xRTX4090")
            self.assertTrue(alone.stdout.startswith("FITS"), alone.stdout + alone.stderr)
            other = program("estimate", MODEL, "--job", self.plan)
            self.assertNotIn("/gpt2, 124.4 M parameters", other.stdout)

    def test_an_estimates_network_and_what_it_saves_stay(self):
        typed = ("gpt2", "--gpus", "2x2xRTX4090", "--seq-len", "128", "--stack", "vramfit", "--network", "10Gbps/card", "--save-kind", "full")
        made = program("estimate", *typed, "--json").stdout
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write(made)
        again, first = json.loads(program("estimate", "--job", self.plan, "--json").stdout), json.loads(made)
        for key in ("cluster", "save_kind", "ranks", "host_bytes"):
            self.assertEqual(again[key], first[key], key)
        self.assertEqual(again["speed"]["step_seconds"], first["speed"]["step_seconds"])
        without = json.loads(program("estimate", "--job", self.plan, "--save-kind", "none", "--json").stdout)
        self.assertNotEqual(without.get("save_kind"), first["save_kind"])
        self.assertEqual(json.loads(program("plan", "--job", self.plan, "--json").stdout)["cluster"]["network_bandwidth"], first["cluster"]["network_bandwidth"])
        other = json.loads(program("estimate", "--job", self.plan, "--gpus", "2x2xRTX4090", "--json").stdout)
        self.assertNotEqual(other["cluster"]["network_bandwidth"], first["cluster"]["network_bandwidth"])

    def test_what_followed_from_a_replaced_choice_is_left_out(self):
        made = program("plan", "gpt2", "--gpus", "2xRTX4090", "--seq-len", "128", "--stack", "trl", "-o", self.plan)
        self.assertEqual(made.returncode, 0, made.stderr)
        rows = json.loads(program("estimate", "--job", self.plan, "--json").stdout)["job"]["global_batch"]
        for flags, field, expected in ((("--micro-batch", str(2 * rows)), "global_batch", 4 * rows), (("--global-batch", str(8 * rows)), "global_batch", 8 * rows),
                                       (("--set", "precision=fp32"), "compute_dtype", "fp32")):
            done = program("estimate", "--job", self.plan, *flags, "--json")
            self.assertEqual(done.stderr.count("is read without what followed from choices that flags replace"), 1, done.stderr)
            self.assertEqual(json.loads(done.stdout)["job"][field], expected, flags)
        self.assertNotIn("left out", program("estimate", "--job", self.plan, "--precision", "bf16-mixed").stderr)

    def test_on_another_stack_its_library_s_own_choices_are_left_out(self):
        typed = ("gpt2", "--gpus", "2xRTX4090", "--seq-len", "128")
        for made_on in ("vramfit", "transformers", "trl"):
            made = program("plan", *typed, "--stack", made_on, "--checkpointing", "full", "--micro-batch", "2", "-o", self.plan)
            self.assertEqual(made.returncode, 0, made.stderr)
            for stack in ("vramfit", "transformers", "accelerate", "deepspeed"):
                again = json.loads(program("estimate", "--job", self.plan, "--stack", stack, "--json").stdout)
                first = json.loads(program("estimate", *typed, "--stack", stack, "--json").stdout)
                self.assertEqual(again["verdict"], first["verdict"], (made_on, stack, again.get("why")))
                self.assertEqual((again["job"]["checkpointing"], again["job"]["micro_batch"]), ("full", 2))
                for key in ("runtime", "modeling", "precision", "compute_dtype"):
                    self.assertEqual(again["job"].get(key), first["job"].get(key), (made_on, stack, key))
        copies = json.loads(program("estimate", "--job", self.plan, "--sharding", "no-shard", "--json").stdout)
        begun = json.loads(program("estimate", *typed, "--stack", "transformers", "--sharding", "no-shard", "--json").stdout)
        for key in ("runtime", "mesh", "reduce_dtype"):
            self.assertEqual(copies["job"][key], begun["job"][key], key)

    def test_of_torchtitan_as_of_2024_it_is_answered_for_what_its_stack_is_now(self):
        typed = ("meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--seq-len", "1024")
        of_2024 = ("--runtime", "pytorch-fsdp2", "--modeling", "torchtitan", "--precision", "bf16-mixed", "--attention", "flash", "--checkpointing", "full")
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write(program("estimate", *typed, *of_2024, "--json").stdout)
        for stack in ("torchtitan", "transformers"):
            again = json.loads(program("estimate", "--job", self.plan, "--stack", stack, "--json").stdout)
            first = json.loads(program("estimate", *typed, "--stack", stack, "--json").stdout)
            self.assertEqual(again["verdict"], "fits", again.get("why"))
            for key in ("runtime", "modeling", "attention", "wrap_embeddings", "reduce_dtype"):
                self.assertEqual(again["job"].get(key), first["job"].get(key), (stack, key))

    def test_an_estimate_is_one_too_and_a_calibration_is_not(self):
        typed = ("gpt2", "--gpus", "2xRTX4090", "--seq-len", "128", "--stack", "trl")
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write(program("estimate", *typed, "--json").stdout)
        self.assertEqual(program("estimate", "--job", self.plan).stdout.splitlines()[0], program("estimate", *typed).stdout.splitlines()[0])
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write('{"schema": "vramfit/plan@2"}')
        self.assertIn("is not known to this version", program("estimate", "gpt2", "--job", self.plan).stderr)
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write('{"schema": "vramfit/calibration@1"}')
        self.assertIn('"vramfit/calibration@1" is no job; give a job\'s file, a plan, a run or an estimate', program("estimate", "gpt2", "--job", self.plan).stderr)


    def test_its_host_memory_is_that_of_its_cluster(self):
        typed = (MODEL, "--gpus", "1xH100-80GB", "--seq-len", "64", "--stack", "vramfit", "--offload", "optimizer", "--host-memory", "1MiB")
        first = program("estimate", *typed, "--json")
        self.assertTrue(json.loads(first.stdout)["why"].startswith("host memory"), first.stdout)
        with open(self.plan, "w", encoding="utf-8") as file:
            file.write(first.stdout)
        again = program("estimate", MODEL, "--job", self.plan)
        self.assertEqual(again.stdout.splitlines()[0], program("estimate", *typed).stdout.splitlines()[0], again.stderr)


class Messages(unittest.TestCase):
    def said(self, code, words, *arguments):
        done = program(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(words, done.stdout + done.stderr)

    def test_of_settings_that_are_another_library_s(self):
        done = program("estimate", MODEL, "--gpus", "4xA100-40GB", "--stack", "transformers", "--seq-len", "64", "--rotary-positions", "8192")
        self.assertIn("--rotary-positions 8192 (--stack torchtune has them; leave it out)", done.stdout)
        self.assertNotIn("--recipe", done.stdout)

    def test_of_saving_with_stacks_that_have_no_rules_for_it(self):
        done = program("estimate", MODEL, "--gpus", "1xRTX4090", "--stack", "transformers", "--seq-len", "64", "--save-kind", "full")
        self.assertRegex(done.stdout, r"NOT MODELLED: --save-kind with --runtime pytorch \(--stack vramfit has it; without it, the step is\)")
        self.assertNotIn("--recipe", done.stdout, "recipes save nothing")

    def test_of_what_is_not_known(self):
        base = ("estimate", MODEL, "--gpus")
        self.said(2, "CARD@SIZE with the slice's memory answers for memory, such as 1xA100-40GB@20GB, with the speed of the whole card", *base, "1xA100-40GB-MIG-3g.20gb")
        self.said(1, '"vramfit rehearse" runs a script with it', *base, "1xH100-80GB", "--optimizer", "galore_adamw")
        self.said(2, '"vramfit help estimate"', *base, "1xH100-80GB", "--set", "foo=1")
        for twice in (("--seq-len", "64", "--set", "seq_len=128"), ("--set", "seq_len=64", "--set", "seq-len=128")):
            self.said(2, "contradicts --seq-len 64; leave one of them out", *base, "1xH100-80GB", *twice)
        # A runtime begins with a bucket of its own, which contradicts nothing.
        bucket = ("--runtime", "pytorch", "--bucket-bytes", "200", "--set", "runtime=pytorch")
        self.said(2, "--set bucket_bytes=100: contradicts --bucket-bytes 200;", *base, "1xH100-80GB", *bucket, "--set", "bucket_bytes=100")
        again = program(*base, "1xH100-80GB", *bucket, "--set", "bucket_bytes=200")
        self.assertNotIn("contradicts", again.stderr)

    def test_of_files_that_are_something_else(self):
        with tempfile.TemporaryDirectory() as folder:
            log, script = os.path.join(folder, "oom.log"), os.path.join(folder, "chk.py")
            for path in (log, script):
                with open(path, "w", encoding="utf-8") as file:
                    file.write("import torch\n")
            self.said(2, 'expected a plan, as "vramfit plan MODEL --gpus CLUSTER -o plan.json" writes it', "export", log, "--to", "trl")
            self.said(2, "is a program; give its configuration, or after two dashes the command that starts it", "import", script)
            self.said(2, "accelerate has FSDP's, deepspeed DeepSpeed's, and trl those of TRL's trainers", "export", log, "--to", "transformers")
            self.said(2, f"BASE {folder}/no: no such file or folder", "merge", folder + "/no", folder, "-o", folder + "/out")
            self.said(2, f"ADAPTERS {folder}/no: no such file or folder", "merge", folder, folder + "/no", "-o", folder + "/out")

    def test_parts_of_a_step_that_take_no_time_are_left_out(self):
        job = ("estimate", MODEL, "--gpus", "1xA100-40GB", "--stack", "vramfit", "--seq-len", "4096", "--micro-batch", "8", "--offload")
        step = next(line for line in program(*job, "activations").stdout.splitlines() if line.startswith("Step "))
        self.assertNotIn("computing on the CPU", step)
        self.assertIn("computing on the CPU", program(*job, "optimizer").stdout)

    def test_eight_gpus_of_a_node_are_offered_in_place_of_twelve(self):
        said = json.loads(program("estimate", "meta-llama/Llama-3.1-70B", "--gpus", "6xA100-80GB", "--json").stdout)
        changes = [each["change"] for each in said["suggestions"]]
        self.assertEqual([each for each in changes if each.startswith("--gpus")], ["--gpus 8xA100-80GB"])


class PastedCommands(unittest.TestCase):
    def imported(self, *words):
        return program("import", "--", "accelerate", "launch", "train.py", "--model_name_or_path", "gpt2", *words).stdout

    def test_lengths_of_other_scripts(self):
        self.assertIn("--seq-len 2048", self.imported("--model_max_length", "2048", "--output_dir", "x"))
        said = self.imported("--max_seq_length", "2048")
        self.assertIn("--stack trl ", said)
        self.assertIn("by max_seq_length, as TRL's SFTConfig called max_length", said)
        self.assertIn("--stack transformers ", self.imported("--max_seq_length", "2048", "--task_name", "mrpc"))


if __name__ == "__main__":
    unittest.main()
