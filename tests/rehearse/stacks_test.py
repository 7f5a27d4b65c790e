"""estimate --stack: whose figures an answer has, what answers where there are no rules, and --exact, with libraries that are there only in name."""
import json
import os
import shlex
import subprocess
import tempfile
import unittest
import unittest.mock

import fake_python

NOBODY = 12345
VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
MODEL = "HuggingFaceTB/SmolLM2-135M"
STACKS = ("vramfit", "transformers", "trl", "accelerate", "deepspeed", "trl-deepspeed", "lightning", "torchtune", "torchtitan")


def estimate(*words, gpus="1xRTX4090", command="estimate"):
    return subprocess.run([VRAMFIT, command, MODEL, "--gpus", gpus, "--seq-len", "1024", *words], text=True, capture_output=True, timeout=100, check=False)


def document(*words, gpus="1xRTX4090"):
    return json.loads(estimate(*words, "--json", gpus=gpus).stdout)


class Stacks(unittest.TestCase):
    def setUp(self):
        self.cache = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(unittest.mock.patch.dict(os.environ, {"VRAMFIT_CACHE": self.cache}))

    def refused(self, why, done, code=2):
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (code, "", 1), done.stderr)
        self.assertIn(why, done.stderr)

    def test_an_answer_says_whose_it_is_and_what_the_other_one_needs(self):
        own, trainer = document("--stack", "vramfit"), document("--stack", "transformers")
        self.assertEqual((own["stack"], trainer["stack"]), ("vramfit", "transformers"))
        self.assertEqual([other["stack"] for other in own["other_stacks"] + trainer["other_stacks"]], ["transformers", "vramfit"])
        for one, other in ((own, trainer), (trainer, own)):
            self.assertEqual(one["other_stacks"][0]["total_bytes"], other["ranks"][0]["total_bytes"])
        self.assertGreater(trainer["ranks"][0]["total_bytes"], own["ranks"][0]["total_bytes"])
        lines = estimate("--stack", "transformers").stdout.splitlines()
        self.assertRegex(lines[0], r"^FITS: [\d.]+ of 23.52 GiB with transformers' Trainer, ")
        self.assertRegex(lines[2], r"^vramfit's own engine needs [\d.]+ GiB, which fits \(--stack vramfit\); ")
        self.assertEqual(document("--set", "runtime=pytorch", "--set", "modeling=transformers")["ranks"], trainer["ranks"])

    def test_without_a_stack_it_is_the_trainer_where_that_has_rules_and_a_plan_is_the_engine_s(self):
        named, by_default = document("--stack", "transformers"), document()
        self.assertEqual((by_default["stack"], by_default["ranks"]), ("transformers", named["ranks"]))
        self.assertRegex(by_default["assumptions"][0], "^no --stack given: transformers' Trainer, which most people train with")
        lines = estimate("--wrap", "layers:2", gpus="2xRTX4090").stdout.splitlines()
        self.assertRegex(lines[0], "^FITS: .* with vramfit's own engine, ")
        self.assertRegex(lines[2], "^transformers' Trainer: no rules for --wrap layers:2 with accelerate's FSDP2 .*; for your own script: ")
        self.assertIn(" --stack transformers --exact rehearses it; ", estimate("--optimizer", "sgd").stdout.splitlines()[2])
        flags = json.loads(estimate("--json", command="plan").stdout)["job"]
        self.assertEqual(flags["runtime"], "vramfit")
        shown = next(line for line in estimate(command="plan").stdout.splitlines() if line.startswith("Flags: ")).removeprefix("Flags: ").split()
        done = subprocess.run([VRAMFIT, "estimate", MODEL, "--gpus", "1xRTX4090", *shown], text=True, capture_output=True, check=False)
        self.assertIn("with vramfit's own engine", done.stdout.splitlines()[0])

    def test_a_stack_sets_what_its_library_does_and_flags_come_after(self):
        titan = document("--stack", "torchtitan", gpus="8xH100-80GB")["job"]
        self.assertEqual((titan["runtime"], titan["checkpointing"], titan["allocator"]), ("pytorch-fsdp2", "selective", "expandable"))
        self.assertEqual(document("--stack", "torchtitan", "--checkpointing", "none", gpus="8xH100-80GB")["job"]["checkpointing"], "none")
        for words in (["--runtime", "vramfit"], ["--set", "modeling=vramfit"]):
            self.refused("--stack transformers: contradicts ", estimate("--stack", "transformers", *words))
        self.refused("--runtime pytorch", estimate("--stack", "lightning", "--runtime", "pytorch"))
        self.refused('unknown value "hugging"', estimate("--stack", "hugging"))
        self.refused("--stack: needs --gpus", subprocess.run([VRAMFIT, "estimate", MODEL, "--stack", "lightning"], text=True, capture_output=True, check=False))

    def test_where_there_are_no_rules_the_command_that_answers_is_named(self):
        for stack in STACKS[3:8]:
            for gpus in ("1xRTX4090", "8xH100-80GB"):
                lacking = {"deepspeed": ["--precision", "fp32"], "trl-deepspeed": ["--precision", "fp32"], "accelerate": ["--optimizer", "sgd"], "torchtune": ["--optimizer", "sgd"]}.get(stack, [])
                done = estimate("--stack", stack, "--micro-batch", "2", "--checkpointing", "full", *lacking, gpus=gpus)
                self.assertEqual(done.returncode, 1)
                words = shlex.split(done.stdout.splitlines()[0].split("this answers it: ")[1])
                self.assertEqual(words[:2], ["vramfit", "rehearse"])
                # It is a command: only the libraries are missing.
                again = subprocess.run([VRAMFIT, *words[1:], "--python", "/bin/true"], text=True, capture_output=True, check=False)
                self.refused("does not run a few lines of Python", again, 1)
                for pair in (["--micro-batch", "2"], ["--seq-len", "1024"], ["--gradient-checkpointing", "on"], ["--gpus", gpus]):
                    self.assertIn(" ".join(pair), " ".join(words))
        self.assertIn("your own script answers it: ", estimate("--stack", "trl", "--wrap", "none").stdout)
        # Preference training; DPO on several GPUs too, GRPO's recipe is for one.
        self.refused("TRL's trainer of it is --stack trl-dpo\n", estimate("--method", "dpo"), 1)
        self.assertIn("vramfit rehearse --recipe trl-dpo ", estimate("--stack", "trl-dpo", "--optimizer", "sgd", gpus="2xL4").stdout)
        for stack in ("trl-dpo-deepspeed", "trl-reward-deepspeed", "trl-grpo-deepspeed"):
            done = estimate("--stack", stack, "--precision", "fp32", "--sharding", "shard-optimizer", gpus="2xL4")
            self.assertIn(f"vramfit rehearse --recipe {stack} ", done.stdout)
            self.assertIn(" --sharding shard-optimizer", done.stdout)
        self.assertIn(" --sharding shard-grad-op ", estimate("--stack", "deepspeed", "--precision", "fp32", "--sharding", "shard-grad-op", gpus="2xL4").stdout)
        self.refused("TRL's trainer of it is --stack trl-grpo\n", estimate("--method", "grpo"), 1)
        self.assertIn("vramfit rehearse --recipe trl-grpo ", estimate("--stack", "trl-grpo", "--micro-batch", "1").stdout)
        self.assertIn("with TRL's GRPOTrainer (training step without generation)", estimate("--stack", "trl-grpo").stdout)
        self.assertIn("with TRL's RewardTrainer", estimate("--stack", "trl-reward", gpus="2xL4").stdout)
        self.refused("--stack trl-grpo on several GPUs (recipe trl-grpo is for one)", estimate("--stack", "trl-grpo", "--exact", gpus="2xL4"), 1)
        # What a library has beside its own: offloading with DeepSpeed, bitsandbytes with torchtune.
        self.assertIn(" --offload params ", estimate("--stack", "deepspeed", "--precision", "fp32", "--offload", "params", gpus="4xL4").stdout)
        self.assertIn(" --optimizer PagedAdamW8bit ", estimate("--stack", "torchtune", "--precision", "fp32", "--optimizer", "paged_adamw_8bit", gpus="1xT4").stdout)
        self.refused("--offload params", estimate("--stack", "trl", "--offload", "params", "--exact"), 1)
        for command in ("plan", "program"):
            self.refused("--stack lightning on one GPU", estimate("--stack", "lightning", command=command), 1)
        # A stack's defaults differ between one GPU and several: each cluster has its own.
        both = json.loads(estimate("--stack", "transformers", "--json", gpus="1xH100-80GB,2xH100-80GB", command="plan").stdout)
        self.assertEqual([each["job"]["runtime"] for each in both["clusters"]], ["pytorch", "pytorch-fsdp2"])
        self.assertIn(" on 1xL4: ", estimate("--stack", "transformers", "--method", "lora", gpus="auto:L4", command="plan").stdout)

    def test_a_card_without_kernels_of_the_engines_pytorch_can_be_rehearsed_with_another(self):
        done = estimate("--stack", "deepspeed", gpus="4xV100-32GB")
        self.assertEqual(done.returncode, 1)
        self.assertIn("this answers it: vramfit rehearse --recipe deepspeed-zero3 ", done.stdout.splitlines()[0])
        self.refused("has no kernels for it", estimate(gpus="4xV100-32GB"))

    def test_a_card_without_bf16_units_is_rehearsed_in_fp16_where_the_recipe_knows_it(self):
        for method, knows_it in (("qlora", True), ("full", True), ("lora", False)):
            command = estimate("--stack", "transformers", "--method", method, "--optimizer", "sgd", gpus="1xT4").stdout.splitlines()[0].split("this answers it: ")[1]
            self.assertEqual(" --precision fp16-mixed " in command, knows_it, command)

    def test_where_the_engine_has_no_rules_the_trainer_may_answer(self):
        for command, begin in (("estimate", "NOT MODELLED"), ("plan", "vramfit: not modelled")):
            done = subprocess.run([VRAMFIT, command, "deepseek-ai/DeepSeek-V2-Lite", "--gpus", "8xH100-80GB"], text=True, capture_output=True, timeout=100, check=False)
            answer = done.stdout + done.stderr
            self.assertEqual(done.returncode, 1)
            self.assertTrue(answer.startswith(begin), answer)
            self.assertIn("vramfit rehearse --recipe trainer deepseek-ai/DeepSeek-V2-Lite --gpus 8xH100-80GB --ranks 0 ", answer)
        done = subprocess.run([VRAMFIT, "plan", "mistralai/Mixtral-8x7B-v0.1", "--gpus", "8xH100-80GB"], text=True, capture_output=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--stack transformers", done.stderr)

    def test_plan_and_program_take_a_stack_that_has_rules(self):
        plan = json.loads(estimate("--stack", "transformers", "--json", command="plan").stdout)
        self.assertEqual((plan["job"]["runtime"], plan["job"]["modeling"]), ("pytorch", "transformers"))
        self.assertIn("aten::_flash_attention_forward", estimate("--stack", "transformers", command="program").stdout)

    def test_the_trainer_on_several_gpus_is_fsdp2(self):
        trainer = document("--stack", "transformers", gpus="4xRTX4090")
        self.assertEqual((trainer["job"]["runtime"], trainer["job"]["reduce_dtype"], trainer["job"]["wrap_embeddings"]), ("pytorch-fsdp2", "bf16", True))
        self.assertEqual(trainer["other_stacks"][0]["stack"], "vramfit")
        self.assertIn("for transformers' Trainer: --stack transformers; ", estimate("--stack", "vramfit", gpus="4xRTX4090").stdout.splitlines()[2])
        plan = json.loads(estimate("--stack", "transformers", "--json", command="plan", gpus="4xRTX4090").stdout)
        self.assertEqual(plan["job"]["runtime"], "pytorch-fsdp2")

    def test_exact_rehearses_the_stacks_recipe(self):
        with tempfile.TemporaryDirectory() as folder:
            python, driver = fake_python.make(folder), os.path.join(folder, "train.py")
            flags = ["--stack", "transformers", "--exact", "--python", python]
            done = estimate(*flags, "--micro-batch", "3", "--optimizer", "adamw:foreach", "--keep-driver", driver, "--json")
            report = json.loads(done.stdout)
            self.assertEqual((done.returncode, report["schema"], report["ranks"][0]["peak_allocated_bytes"]), (0, "vramfit/rehearsal@1", 3 << 30))
            with open(driver, encoding="utf-8") as file:
                script = file.read()
            for line in (f'MODEL = "{MODEL}"', "MICRO_BATCH = 3", "SEQ_LEN = 1024", 'OPTIMIZER = "adamw_torch"'):
                self.assertIn(f"\n{line}  # --", script)
            self.assertIn("transformers' Trainer, rehearsed: vramfit rehearse --recipe trainer ", report["notes"][0])
            self.assertEqual(estimate(*flags, "--micro-batch", "40").returncode, 3)
            self.assertTrue(estimate(*flags).stdout.startswith("FITS: "))
            # Without rules, and allowed to; with rules it is not needed.
            self.assertTrue(estimate("--stack", "accelerate", "--optimizer", "sgd", "--rehearse", "auto", "--python", python, gpus="2xL4").stdout.startswith("FITS: "))
            self.assertEqual(document("--stack", "transformers", "--rehearse", "auto", "--python", python)["schema"], "vramfit/estimate@1")

    def test_an_answer_is_kept_for_the_next_time_that_the_same_is_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            python = fake_python.make(folder)
            started = []  # what the script printed: nothing is started where an answer is kept

            def ask(*words, stack="transformers", **environment):
                with unittest.mock.patch.dict(os.environ, environment):
                    done = estimate("--stack", stack, "--exact", *(words if "--python" in words else ("--python", python, *words)))
                started.append("SEQ_LEN" in done.stderr)
                return done
            first, again = ask(), ask()
            self.assertEqual(started, [True, False])
            self.assertEqual((first.returncode, again.returncode), (0, 0))
            self.assertNotIn("from the cache", first.stdout)
            self.assertIn("from the cache: rehearsed on ", again.stdout)
            self.assertEqual(first.stdout.splitlines()[0], again.stdout.splitlines()[0])
            as_json = json.loads(ask("--json").stdout)
            self.assertEqual((started[-1], as_json["schema"], as_json["verdict"]), (False, "vramfit/rehearsal@1", "fits"))
            self.assertTrue(any("--no-cache rehearses it again" in note for note in as_json["notes"]))
            self.assertEqual((ask("--micro-batch", "40").returncode, ask("--micro-batch", "40").returncode, started[-2:]), (3, 3, [True, False]))
            # What the answer follows from makes another question.
            other = fake_python.make(folder, {**fake_python.LIBRARIES, "bitsandbytes": "0.50.2"})
            for change in (lambda: ask("--micro-batch", "2"), lambda: ask("--python", other), lambda: ask(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64"), lambda: ask("--no-cache"),
                           lambda: estimate("--stack", "transformers", "--exact", "--python", python, gpus="1xH100-80GB")):
                started.append("SEQ_LEN" in change().stderr)
                self.assertTrue(started[-1])
            # A driver is written whatever is kept.
            driver = os.path.join(folder, "train.py")
            ask("--keep-driver", driver)
            self.assertTrue(os.path.exists(driver))

    def test_a_script_that_fails_is_asked_again(self):
        with tempfile.TemporaryDirectory() as folder:
            python = fake_python.make(folder)
            with open(os.path.join(os.path.dirname(python), "torch.py"), "w", encoding="utf-8") as out:
                out.write("raise SystemExit(7)\n")
            for _ in range(2):
                done = estimate("--stack", "transformers", "--exact", "--python", python)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertNotIn("from the cache", done.stdout)

    def test_a_cache_that_others_may_have_written_or_that_is_damaged_is_not_used(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--stack", "transformers", "--exact", "--python", fake_python.make(folder)]
            estimate(*flags)
            kept = os.path.join(self.cache, "exact", *os.listdir(os.path.join(self.cache, "exact")))
            with open(kept, encoding="utf-8") as file:
                whole = file.read()

            def told(why):
                done = estimate(*flags)
                self.assertIn("SEQ_LEN", done.stderr)
                self.assertIn(why, done.stdout)
                self.assertNotIn("from the cache", done.stdout)
            for damaged in (whole[:100], "", "{}", "[" * 100000, whole.replace("FITS", "DOES"), whole.replace('"fits"', '"sits"', 1), whole + "x"):
                with open(kept, "w", encoding="utf-8") as out:
                    out.write(damaged)
                told("a kept answer isn't used: ")
                self.assertIn("from the cache", estimate(*flags).stdout)  # it was written anew
            os.chmod(os.path.dirname(kept), 0o777)
            told("isn't used as a cache: others may write to it")
            os.chmod(os.path.dirname(kept), 0o755)
            os.chmod(kept, 0o666)
            told("others may write to it")
            os.chmod(kept, 0o600)
            elsewhere = os.path.join(folder, "kept")
            os.rename(kept, elsewhere)
            os.symlink(elsewhere, kept)
            told("it isn't a regular file")
            os.remove(kept)
            os.mkdir(kept)
            told("it isn't a regular file")
            os.rmdir(kept)
            if os.geteuid() == 0:
                os.rename(elsewhere, kept)
                os.chown(kept, NOBODY, NOBODY)
                told("it belongs to another user")

    def test_what_no_recipe_has_is_refused_by_name(self):
        for words, why in ((["--stack", "trl", "--method", "qlora"], "--stack trl with --method qlora"), (["--stack", "transformers", "--wrap", "none"], "--wrap none"),
                           (["--stack", "torchtune", "--precision", "bf16-mixed"], "--precision bf16-mixed"), (["--stack", "trl", "--precision", "bf16-pure"], "--storage-dtype bf16"),
                           (["--stack", "trl", "--checkpointing", "every:2"], "--checkpointing every:2"), (["--stack", "lightning", "--optimizer", "adamw-8bit"], "--optimizer adamw-8bit"),
                           (["--stack", "transformers", "--allocator", "max_split_size_mb=64"], "--allocator")):
            self.refused(why, estimate(*words, "--exact"), 1)
        # What an estimate has all the same.
        rest = "in a rehearsal of recipe trainer (without --exact it is estimated)"
        self.refused(f"--allocator max_split_size_mb=64 {rest}", estimate("--stack", "transformers", "--allocator", "max_split_size_mb=64", "--exact"), 1)
        self.assertNotIn("without --exact", estimate("--stack", "torchtune", "--precision", "bf16-mixed", "--exact").stderr)
        self.refused("--exact: rehearses a library's script", estimate("--stack", "vramfit", "--exact"))
        self.refused("--gpus 2xcpu-1GiB are CPU ranks", estimate("--stack", "trl", "--exact", gpus="2xcpu-1GiB"))
        for words, why in ((["--python", "python"], "--python: is for a rehearsal"), (["--keep-driver", "x"], "--keep-driver: is for a rehearsal"),
                           (["--no-cache"], "--no-cache: is for a rehearsal"), (["--exact", "--no-clip"], "--no-clip: changes nothing"), (["--rehearse", "always"], "--rehearse always: never or auto")):
            self.refused(why, estimate("--stack", "transformers", *words))


if __name__ == "__main__":
    unittest.main()
