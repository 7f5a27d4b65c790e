"""Help, hints and the words that people type: what a person meets in the first five minutes."""

import json
import os
import pty
import re
import shlex
import subprocess
import tempfile
import time
import unittest

from under_sanitizers import NARROW, SANITIZED

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}


def program(*arguments, **variables):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False, env={**ENVIRONMENT, **variables})


def command_names():
    lines = program("help").stdout.split("\nCommands:\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if re.match(r"^  \w", line)]


def examples_of(command):
    text = program("help", command).stdout
    return [line.strip() for line in text.split("\nExamples:\n")[1].split("\n\n")[0].splitlines()]


class Help(unittest.TestCase):
    def test_help_of_a_command_is_its_help_flag(self):
        self.assertEqual(program("help").stdout, program("--help").stdout)
        for command in command_names():
            shown = program("help", command)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertEqual(shown.stdout, program(command, "--help").stdout)
        done = program("help", "estimat")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('did you mean "estimate"?', done.stderr)

    def test_flags_stand_under_headings_in_the_fields_words(self):
        text = program("help", "run").stdout
        headings = re.findall(r"^(\w+):$", text, re.M)
        self.assertEqual(headings, ["Examples", "Arguments", "Common", "Sharding", "Precision", "Memory", "Software", "Run", "Optimizer", "Checkpoints",
                                    "Output", "Other"])
        flat = " ".join(text.split())
        for words in ("Sequences per GPU per forward pass", "Sequence length in tokens", "derived from the other batch flags, else 1", "Gradient-clipping norm",
                      "Initial weights", "Resume from the latest valid checkpoint", "Deterministic kernels only"):
            self.assertIn(words, flat)

    def test_help_is_as_wide_as_the_terminal(self):
        for command in ("", *command_names()):
            for columns in (40, 60, 80, 100):
                text = program("help", *filter(None, [command]), COLUMNS=str(columns)).stdout
                examples = text.split("\nExamples:\n")[1].split("\n\n")[0].splitlines()
                for line in text.splitlines():
                    # A line to type, a list of values and a single word are not broken.
                    whole = line in examples or re.match(r"^  -\S", line) or " " not in line.strip()
                    self.assertTrue(len(line) <= columns or whole, (command, columns, line))

    @unittest.skipIf(SANITIZED, "minutes, in code that other tests run too (docs/testing.md)")
    def test_the_main_commands_have_three_examples_and_those_that_can_be_run_do(self):
        for command in ("estimate", "plan", "run", "rehearse", "compare", "models", "gpus"):
            self.assertEqual(len(examples_of(command)), 3, command)
        with tempfile.TemporaryDirectory() as folder:
            for command in ("estimate", "models", "gpus", "help", "version", "doctor", "completion"):
                for example in examples_of(command):
                    words = shlex.split(re.sub(r"source <\((.*)\)|( \||>).*", r"\1", example))
                    if "--python" in words:
                        continue
                    done = subprocess.run([PROGRAM, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT)
                    self.assertIn(done.returncode, (0, 3), (example, done.stderr))


class WhatPeopleType(unittest.TestCase):
    def same(self, typed, ours, gpus="4xA100-40GB", command="estimate", model=MODEL):
        answers = [program(command, model, "--gpus", gpus, *flags) for flags in (typed, ours)]
        self.assertEqual(answers[1].stderr, "")
        self.assertIn(answers[1].returncode, (0, 1, 3, 4), answers[1].stderr)
        self.assertEqual(answers[0].stdout, answers[1].stdout, (typed, answers[0].stderr))
        return answers[0].stderr

    def test_flags_of_other_tools_are_read_and_said(self):
        said = self.same(["--batch-size", "2"], ["--micro-batch", "2"])
        self.assertEqual(said, "vramfit: --batch-size is read as --micro-batch\n")
        for typed, ours in (
                (["--per_device_train_batch_size=2", "--gradient_accumulation_steps=4"], ["--micro-batch", "2", "--grad-accum", "4"]),
                (["--bf16"], ["--precision", "bf16-mixed"]),
                (["--bf16", "True", "--gradient_checkpointing", "True"], ["--precision", "bf16-mixed", "--checkpointing", "full"]),
                (["--fp16", "false", "--gradient-checkpointing"], ["--checkpointing", "full"]),
                (["--activation-checkpointing=every:2"], ["--checkpointing", "every:2"]),
                (["--max-seq-length", "256", "--torch_dtype", "bfloat16"], ["--seq-len", "256", "--precision", "bf16-mixed"]),
                (["--zero-stage", "2"], ["--sharding", "shard-grad-op"]), (["--ddp"], ["--sharding", "no-shard"]),
                (["--qlora"], ["--method", "qlora"]), (["--use_peft", "--load_in_4bit"], ["--method", "qlora"]),
                (["--load_in_4bit", "--lora"], ["--method", "qlora"]), (["--lora"], ["--method", "lora"]), (["--zero3"], ["--sharding", "full-shard"]),
                (["--stack", "trl", "--gradient_checkpointing", "False"], ["--stack", "trl", "--checkpointing", "none"]),
                (["--no-gradient-checkpointing"], ["--checkpointing", "none"]),
                (["--what-if", "gradient_checkpointing=off"], ["--what-if", "checkpointing=none"]),
                (["--fsdp", "full_shard"], ["--sharding", "full-shard"]), (["--fsdp", "shard_grad_op auto_wrap"], ["--sharding", "shard-grad-op"]),
                (["--fsdp", "full_shard auto_wrap offload"], ["--sharding", "full-shard", "--offload", "params"]),
                (["--use_liger_kernel"], ["--kernels", "liger"]), (["--liger", "off"], ["--kernels", "libtorch"]),
                (["--seq_len", "256"], ["--seq-len", "256"])):
            self.same(typed, ours)

    def test_a_word_with_another_meaning_elsewhere_is_said_with_it(self):
        self.assertIn("not as the dtype in which weights are loaded", self.same(["--dtype", "bfloat16"], ["--precision", "bf16-mixed"]))
        self.assertIn("--stack deepspeed", self.same(["--zero-stage", "3"], ["--sharding", "full-shard"]))

    def test_what_has_no_rules_is_said_with_what_answers(self):
        for flag in ("--tensor-parallel", "--tp", "--pp", "--pipeline_parallel", "--context-parallel", "--expert-parallel"):
            said = program("estimate", MODEL, "--gpus", "2xH100-80GB", flag, "2").stderr
            self.assertIn(f"{flag}: unknown flag; there are no rules for tensor, pipeline, context and expert parallelism", said)
            self.assertIn("vramfit rehearse --gpus CLUSTER", said)
        for value in ([], ["on"], ["true"]):
            self.assertIn("every row is taken as full: --seq-len is its length", program("estimate", MODEL, "--gpus", "2xH100-80GB", "--sample-packing", *value).stderr)

    def test_what_is_on_or_off_needs_no_value(self):
        for typed in (["--wrap-embeddings"], ["--wrap-embeddings", "on"], ["--wrap_embeddings=true"]):
            self.assertEqual(self.same(typed, ["--wrap-embeddings=on"]), "")
        ours = program("estimate", MODEL, "--gpus", "2xH100-80GB", "--stack", "vramfit", "--deterministic=on")
        for typed in (["--deterministic", MODEL], ["--deterministic", "on", MODEL], [MODEL, "--deterministic"]):
            self.assertEqual(program("estimate", *typed, "--gpus", "2xH100-80GB", "--stack", "vramfit").stdout, ours.stdout)

    def test_values_of_other_tools_are_read(self):
        for typed, ours in (
                (["--precision", "fp16"], ["--precision", "fp16-mixed"]), (["--precision", "BF16"], ["--precision", "bf16-mixed"]),
                (["--precision", "bf16-true"], ["--precision", "bf16-pure"]), (["--seq-len", "8k"], ["--seq-len", "8192"]), (["--seq-len", "1M"], ["--seq-len", "1048576"]),
                (["--stack", "transformers", "--attention", "flash_attention_2"], ["--stack", "transformers", "--attention", "flash-attn"]), (["--attention", "flash-attention"], ["--attention", "flash"]), (["--attention", "eager"], ["--attention", "math"]),
                (["--checkpointing", "true"], ["--checkpointing", "full"]), (["--sharding", "ZeRO3"], ["--sharding", "full-shard"]),
                (["--wrap-embeddings", "False"], ["--wrap-embeddings", "off"]), (["--set", "precision=fp16"], ["--precision", "fp16-mixed"]),
                (["--optimizer", "adamw_torch_fused"], ["--optimizer", "adamw:fused"]), (["--loss", "chunked"], ["--loss", "chunked:8"])):
            self.same(typed, ours)

    def test_clusters_as_people_write_them(self):
        ours = program("estimate", MODEL, "--gpus", "8xH100-80GB").stdout
        for typed in ("8 x H100-80GB", "8*H100-80GB", "8 H100-80GB", "H100-80GBx8", "H100-80GB:8", "8×h100_80gb", "8 x H100 80GB"):
            text = program("estimate", MODEL, "--gpus", typed).stdout.replace("h100_80gb", "H100-80GB").replace("H10080GB", "H100-80GB")
            self.assertEqual([line for line in text.splitlines() if "is read as" not in line], ours.splitlines(), typed)

    def test_a_word_that_is_a_flag_of_ours_stays_one(self):
        done = program("estimate", MODEL, "--gpus", "1xcpu-1GiB", "--stepz", "3")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--stepz: unknown flag", done.stderr)


class Hints(unittest.TestCase):
    def said(self, *arguments, code=2):
        done = program(*arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), (arguments, done.stderr))
        return done.stderr

    def test_another_model_of_a_card_is_no_misspelling(self):
        hint = self.said("estimate", MODEL, "--gpus", "2xRTX4070")
        self.assertNotIn("RTX4090", hint)
        self.assertIn("12 GB, compute capability 8.9", hint)
        self.assertIn("RTX4060Ti@12GB", hint)
        self.assertIn("RTX5070Ti@12GB", self.said("gpus", "5070"))
        self.assertIn("H100-80GB", self.said("estimate", MODEL, "--gpus", "8xH100-64GB"))
        self.assertIn('did you mean "RTX4090"', self.said("estimate", MODEL, "--gpus", "RXT4090"))
        for name in ("X100-80GB", "K100", "RTX9990", "banana"):
            self.assertNotIn("did you mean", self.said("estimate", MODEL, "--gpus", name))

    def test_what_a_hint_says_to_try_works(self):
        for name in ("RTX4070", "RTX3070", "A2", "RTX5000Ada"):
            card = re.search(r"try (\S+)", self.said("gpus", name))[1]
            self.assertIn(program("estimate", MODEL, "--gpus", f"1x{card}", "--precision", "fp32").returncode, (0, 3), card)
        for name in ("GTX1080Ti", "P40"):  # no card of their generation has kernels in our PyTorch
            self.assertRegex(self.said("gpus", name), r"has no kernels for it, .*: vramfit rehearse --gpus 1xP100-16GB@\d+GB -- ")

    def test_other_vendors_are_named(self):
        for name, vendor in (("MI300X", "AMD"), ("RX7900XTX", "AMD"), ("M3-Max", "Apple"), ("Gaudi2", "Intel"), ("TPUv5e", "Google")):
            hint = self.said("estimate", MODEL, "--gpus", f"8x{name}")
            self.assertIn(f"is from {vendor}: NVIDIA only, today", hint)

    def test_a_number_that_differs_is_no_misspelling(self):
        self.assertNotIn("Llama-3.2-3B", self.said("estimate", "meta-llama/Llama-3.2-7B", "--gpus", "1xcpu-1GiB", code=5))


class WithoutGpus(unittest.TestCase):
    @unittest.skipIf(SANITIZED, "a minute, in code that other tests run too (docs/testing.md)")
    def test_estimate_says_what_one_card_needs_and_which_cards_hold_it(self):
        done = program("estimate", "meta-llama/Llama-3.1-8B")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"^NEEDS: [\d.]+ GiB on one card with transformers' Trainer \(H100-80GB without a limit\)\n")
        self.assertRegex(done.stdout, r"\n +4 cards( +[^\n]*\n)* +[^\n]*H100-80GB")
        self.assertIn("Next: vramfit estimate meta-llama/Llama-3.1-8B --gpus 4xH100-80GB\n", done.stdout)
        self.assertRegex(done.stdout, r"\n +32 cards( +[^\n]*\n)* +[^\n]*L40S")
        self.assertRegex(done.stdout, r"\nCards that hold it with --checkpointing full\n( +[^\n]*\n)* +[^\n]*RTX4090")
        self.assertRegex(done.stdout, r"\nNo rules: --runtime pytorch on such a card, for which PyTorch [\d.]+ has no\n  kernels\n[^:]*V100-32GB")

    def test_the_engine_is_asked_for_by_name_and_where_the_trainer_has_no_rules(self):
        done = program("estimate", MODEL, "--stack", "vramfit")
        self.assertRegex(done.stdout, r"^NEEDS: [\d.]+ GiB on one card with vramfit's own engine \(H100-80GB without a limit\)\n")
        self.assertRegex(done.stdout, r"\nNot at all: such a card \(compute capability 7\.0\): PyTorch [\d.]+, which this\s+engine runs on, has no kernels for it \([^)]*\)\n +V100-32GB, V100-16GB\n")
        self.assertIn("with vramfit's own engine", program("estimate", MODEL, "--wrap", "layers:2").stdout.splitlines()[0])
        self.assertIn("--stack: needs --gpus", program("estimate", MODEL, "--stack", "lightning").stderr)

    def test_the_cards_are_the_fewest_that_hold_the_job(self):
        flags = ["--seq-len", "2048", "--checkpointing", "full", "--stack", "vramfit"]
        answer = json.loads(program("estimate", "meta-llama/Llama-3.1-8B", *flags, "--json").stdout)
        self.assertEqual(answer["schema"], "vramfit/requirements@1")
        rows = {row["card"]: row for row in answer["cards"]}
        self.assertEqual(len(rows), len(json.loads(program("gpus", "--json").stdout)))
        for card in ("H200-141GB", "H100-80GB", "RTX4090", "RTX3060"):
            row = rows[card]
            exact = json.loads(program("estimate", "meta-llama/Llama-3.1-8B", "--gpus", row["gpus"], *flags, "--json").stdout)
            self.assertTrue(exact["fits"], card)
            self.assertEqual(exact["ranks"][exact["worst"]]["total_bytes"], row["total_bytes"])
            if row["cards"] > 1:
                fewer = program("estimate", "meta-llama/Llama-3.1-8B", "--gpus", f"{row['cards'] // 2}x{card}", *flags)
                self.assertEqual(fewer.returncode, 3 if "DOES NOT FIT" in fewer.stdout else 0, card)
                self.assertFalse(fewer.stdout.startswith("FITS"), card)

    def test_a_job_that_is_no_job_is_refused(self):
        done = program("estimate", MODEL, "--lora-rank", "8")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--lora-rank", done.stderr)
        done = program("estimate", MODEL, "--attention", "cudnn", "--stack", "vramfit")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--attention cudnn", done.stderr)
        self.assertIn("vramfit rehearse --gpus 1xH100-80GB -- python train.py", done.stderr)


class Progress(unittest.TestCase):
    def on_terminal(self, *arguments):
        """What is written to stderr, when that is a terminal."""
        reader, writer = pty.openpty()
        with subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, stderr=writer, env=ENVIRONMENT) as process:
            os.close(writer)
            said = b""
            while part := self.read(reader):
                said += part
            process.wait(120)
        os.close(reader)
        return said.decode()

    def read(self, reader):
        try:
            return os.read(reader, 4096)
        except OSError:  # Linux's answer once the other end is closed
            return b""

    def test_a_long_search_says_so_on_a_terminal_and_a_short_one_does_not(self):
        begin = time.monotonic()
        said = self.on_terminal("plan", "meta-llama/Llama-3.1-8B", "--gpus", "8xA100-80GB", "--objective", "longest-sequence")
        if time.monotonic() - begin > 1:  # a machine may be faster than that one day
            self.assertRegex(said, r"\rvramfit: searching for the longest sequence, \d+ s ")
            self.assertTrue(said.endswith("\x1b[K"), said)
        self.assertEqual(self.on_terminal("estimate", MODEL, "--gpus", "1xH100-80GB"), "")


class PlanSaysItsDecisionFirst(unittest.TestCase):
    def test_verdict_flags_step_time_speed_per_gpu_and_utilization(self):
        lines = program("plan", "meta-llama/Llama-3.2-1B", "--gpus", "2xH100-80GB", "--seq-len", "1024", *NARROW).stdout.splitlines()
        self.assertTrue(lines[0].startswith("FITS: "))
        self.assertTrue(lines[1].startswith("Flags: --runtime vramfit --precision bf16-mixed"), lines[1])
        speed = re.match(
            r"^Step ([\d.]+) s \(([\d.]+) to ([\d.]+)\), (\d+) tokens/s \((\d+) per GPU\), MFU ([\d.]+) %, [\d.]+ s of it waiting for other ranks \(predicted\)$", lines[2])
        self.assertTrue(speed, lines[2])
        self.assertTrue(float(speed[2]) < float(speed[1]) < float(speed[3]))
        self.assertAlmostEqual(int(speed[4]) / 2, int(speed[5]), delta=1)
        self.assertTrue(0 < float(speed[6]) <= 100)

    def test_frontier_and_steps_are_tables(self):
        text = program("plan", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--json").stdout
        plan = json.loads(text)
        lines = program("plan", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB").stdout
        rows = lines.split("\nMemory against speed\n")[1].split("\n\n")[0].splitlines()[1:]
        smaller = [each for each in plan["alternatives"] if each["fits"] and not each["needs"]]
        self.assertEqual(len(rows), 1 + len(smaller))
        for row, point in zip(rows, [plan["prediction"], *smaller]):
            self.assertEqual(int(row.split()[1]), round(point["tokens_per_second"]))
        self.assertEqual(len({row.index("█") for row in rows}), 1)
        steps = lines.split("\nFrom the job as asked for to the plan")[1].split("\n\n")[0].splitlines()[1:]
        self.assertEqual(len(steps), len(plan["steps"]))
        self.assertIn("as asked for", steps[0])
        for line, step in zip(steps[1:], plan["steps"][1:]):
            self.assertIn(step["change"], line)
        cpu = program("plan", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64").stdout.splitlines()
        self.assertRegex(cpu[2], r"per rank\), [\d.]+ s of it waiting for other ranks \(predicted\)$")  # the peak of a CPU is not known

    def test_the_flags_of_a_plan_make_its_estimate(self):
        lines = program("plan", MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64").stdout.splitlines()
        flags = shlex.split(lines[1].removeprefix("Flags: "))
        self.assertEqual(program("estimate", MODEL, "--gpus", "2xH100-80GB", *flags).stdout.splitlines()[0], lines[0])

    def test_the_flags_of_a_plan_for_a_stack_name_it_and_what_it_would_set_otherwise(self):
        asked = (MODEL, "--gpus", "2xH100-80GB", "--seq-len", "64")
        for stack in ("trl", "transformers", "torchtune"):
            lines = program("plan", *asked, "--stack", stack).stdout.splitlines()
            flags = shlex.split(lines[1].removeprefix("Flags: "))
            self.assertEqual(flags[:2], ["--stack", stack])
            if stack == "trl":  # whose default is full
                self.assertIn("--checkpointing", flags)
            self.assertEqual(program("estimate", *asked[:3], *flags).stdout.splitlines()[0], lines[0])


class WhatIsNotModelled(unittest.TestCase):
    def test_it_comes_with_the_command_that_would_answer(self):
        for gpus, command in (("1xH100-80GB", "-- python train.py"), ("8xH100-80GB", "-- torchrun --nproc-per-node 8 train.py"),
                              ("2x8xH100-80GB", "--ranks 0 -- python train.py")):
            done = program("estimate", MODEL, "--gpus", gpus, "--attention", "cudnn", "--stack", "vramfit")
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"--attention cudnn; your own script answers it: vramfit rehearse --gpus {gpus} {command}\n", done.stdout)
            self.assertIn(f"vramfit rehearse --gpus {gpus}", program("plan", MODEL, "--gpus", gpus, "--attention", "cudnn", *NARROW).stderr)

    def test_of_a_file_that_a_program_trains_with_it_is_that_program(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "my lora.yaml")
            for text, whole, rank in (("base_model: gpt2\nflex_attention: true\n", "axolotl train", "python -m axolotl.cli.train"),
                                      ("model_name_or_path: gpt2\nstage: sft\ncutoff_len: 512\nfinetuning_type: lora\nuse_badam: true\n", "llamafactory-cli train", "python -m llamafactory.launcher")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                for gpus, command in (("1xH100-80GB", f"-- {whole}"), ("8xH100-80GB", f"-- {whole}"), ("2x8xH100-80GB", f"--ranks 0 -- {rank}")):
                    expected = f"vramfit rehearse --gpus {gpus} {command} '{path}'"
                    self.assertIn(f"; this answers it: {expected}\n", program("estimate", "--job", path, "--gpus", gpus).stdout)
                    self.assertIn(expected, program("plan", "--job", path, "--gpus", gpus).stderr)


class Explain(unittest.TestCase):
    """Which cluster the estimate beside a message is for."""

    def explained(self, name, *arguments):
        examples = os.path.join(SOURCE, "tests", "cli", "explain", "examples")
        return program("explain", os.path.join(examples, name), *arguments)

    def test_without_gpus_the_card_is_that_of_the_message(self):
        done = self.explained("rich.log", MODEL, "--seq-len", "64")
        self.assertEqual((done.returncode, done.stderr), (0, "vramfit: note: --gpus 1x15.77GiB: the card is the message's\n"))
        self.assertRegex(done.stdout, r"the card has +15\.77 +15\.77 +\+0\.00")

    def test_of_cards_with_as_much_that_are_alike_the_first_is_meant(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "oom.log")
            for size, card in (("39.38", "A100-40GB"), ("79.10", "79.10GiB")):  # an H100 with PCIe has fewer multiprocessors
                with open(log, "w", encoding="utf-8") as file:
                    file.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
                               f"{size} GiB of which 1.00 GiB is free.\n")
                self.assertIn(f"note: --gpus 1x{card}: the card", program("explain", log, MODEL, "--seq-len", "64").stderr)

    def test_how_many_cards_is_asked_for_where_ranks_failed(self):
        done = self.explained("ranks.log", MODEL)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--gpus: missing", done.stderr)
        configs = os.path.join(SOURCE, "tests", "cli", "configs", "examples")
        done = self.explained("ranks.log", "--job", os.path.join(configs, "accelerate_fsdp2.yaml"), "--job", os.path.join(configs, "trl_sft.yaml"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--gpus 2x8xRTX4090: the card is the message's", done.stderr)

    def test_a_file_alone_needs_no_job_and_no_model_is_an_error_of_its_own(self):
        done = self.explained("ranks.log")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertNotIn("Compared with the estimate", done.stdout)
        self.assertEqual(self.explained("ranks.log", "no/such-model", "--gpus", "1xRTX4090").returncode, 5)
        self.assertIn("MODEL", self.explained("ranks.log", "--seq-len", "64", "--gpus", "1xRTX4090").stderr)


class Completion(unittest.TestCase):
    def completed(self, *words):
        script = program("completion", "bash").stdout
        line = " ".join(map(shlex.quote, words))
        ask = f'{script}\nCOMP_WORDS=({line})\nCOMP_CWORD={len(words) - 1}\n_vramfit\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
        return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()

    def test_bash_offers_models_cards_and_values(self):
        self.assertIn("meta-llama/Llama-3.1-8B", self.completed("vramfit", "estimate", "meta-llama/Llama-3.1"))
        self.assertIn("H100-80GB", self.completed("vramfit", "gpus", "H1"))
        self.assertIn("8xH100-80GB", self.completed("vramfit", "plan", "x", "--gpus", "8xH1"))
        self.assertIn("2x8xA100-40GB", self.completed("vramfit", "rehearse", "--gpus", "2x8xA100-4"))
        self.assertEqual(self.completed("vramfit", "plan", "x", "--checkpointing", "f"), ["full"])
        self.assertEqual(self.completed("vramfit", "plan", "x", "--checkpointing", "e"), ["every:"])
        self.assertEqual(self.completed("vramfit", "help", "est"), ["estimate"])
        self.assertIn("--seq-len", self.completed("vramfit", "plan", "--seq"))

    def test_other_shells_have_the_same_words(self):
        for shell in ("zsh", "fish"):
            script = program("completion", shell).stdout
            for word in ("meta-llama/Llama-3.1-8B", "H100-80GB", "bf16-mixed"):
                self.assertIn(word, script, shell)

    def test_every_value_that_is_offered_is_one(self):
        for flag in ("--optimizer", "--precision", "--sharding", "--attention", "--load", "--method", "--modeling"):
            for value in self.completed("vramfit", "estimate", "x", flag, ""):
                done = program("estimate", MODEL, "--gpus", "2xH100-80GB", flag, value)
                self.assertNotIn("unknown value", done.stderr, (flag, value))


if __name__ == "__main__":
    unittest.main()
