"""The program as users see it: exit codes, and one clear line for everything that goes wrong."""

import json
import os
import shlex
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
TINY = [MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "64"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}


def program(*arguments, **variables):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env={**ENVIRONMENT, **variables})


class Program(unittest.TestCase):
    def refused(self, arguments, code, *words):
        done = program(*arguments)
        self.assertEqual(done.returncode, code, (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        self.assertEqual(done.stdout, "", arguments)
        for word in words:
            self.assertIn(word, done.stderr, arguments)

    def test_help_and_version_are_no_errors(self):
        for arguments in (["--help"], ["--version"], ["version"], ["estimate", "--help"]):
            self.assertEqual(program(*arguments).returncode, 0, arguments)

    def test_every_command_of_the_help_has_a_help_of_its_own(self):
        lines = program("--help").stdout.split("\nCommands:\n")[1].split("\n\n")[0].splitlines()
        commands = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
        self.assertIn("estimate", commands)
        for command in commands:
            self.assertEqual(program(command, "--help").returncode, 0, command)

    def test_misspelt_words_get_a_suggestion(self):
        self.refused(["estimat", MODEL], 2, 'unknown command; did you mean "estimate"?')
        self.refused(["estimate", *TINY, "--seq-lne", "5"], 2, 'unknown flag; did you mean "--seq-len"?')
        self.refused(["estimate", *TINY, "--sharding", "ful-shard"], 2, "--sharding", 'did you mean "full-shard"?')
        self.refused(["estimate", *TINY, "--optimizer", "momo"], 2, 'unknown value "momo" (known: ')
        self.refused(["estimate", *TINY, "--loss", "full", "--loss=chunked:8"], 2, "--loss: given 2 times (full, chunked:8); give it once")
        for words, said in ((("--bf16", "--fp16"), "--precision: given 2 times (bf16-mixed, fp16-mixed)"), (("--batch-size=4", "--micro-batch", "2"), "--micro-batch: given 2 times (4, 2)")):
            done = program("estimate", MODEL, "--gpus", "1xH100-80GB", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(said, done.stderr)
        self.refused(["estimate", *TINY, "--format", "tabel"], 2, "--format", 'did you mean "table"?')
        self.refused(["estimate", MODEL, "--gpus", "8xH100-80G"], 2, "H100-80GB")
        self.refused(["gpus", "H100-80G"], 2, "did you mean H100-80GB")

    def test_a_flag_may_be_repeated_with_the_same_value(self):
        once = program("estimate", *TINY, "--micro-batch", "2", "--json")
        for words in (("--seq-len=64", "--micro-batch", "2", "--micro-batch=2"), ("--batch-size=2", "--micro-batch", "2", "--seq-len", "64")):
            again = program("estimate", *TINY, *words, "--json")
            self.assertEqual((again.returncode, again.stdout), (0, once.stdout), again.stderr)

    def test_wrong_numbers_are_usage_errors(self):
        for flag in ("--seq-len", "--micro-batch", "--grad-accum", "--global-batch"):
            for value in ("0", "-1", "99999999999999999999", "1e3", "", "0x10"):
                self.refused(["estimate", *TINY, f"{flag}={value}" if value else f"{flag}="], 2, flag)

    def test_huge_but_legal_numbers_end_with_one_line_or_an_answer(self):
        for arguments in (["--global-batch", "268435456"], ["--grad-accum", "268435456"], ["--micro-batch", "268435456"],
                          ["--loss", "chunked:65536"], ["--prefetch", "forward=1024"]):
            done = program("estimate", *TINY, *arguments)
            self.assertIn(done.returncode, (0, 1, 2, 3), (arguments, done.stderr))
            self.assertLessEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))

    def test_contradictions_are_usage_errors(self):
        self.refused(["estimate", *TINY, "--micro-batch", "3", "--grad-accum", "2", "--global-batch", "32"], 2, "--global-batch 32")
        self.refused(["estimate", *TINY, "--sharding", "no-shard", "--reshard", "always"], 2, "--reshard")
        self.refused(["estimate", *TINY, "--mesh", "shard=3"], 2, "--mesh")

    def test_what_is_missing_is_named(self):
        self.refused(["estimate"], 2, "MODEL: missing")
        self.refused(["plan", MODEL], 2, "--gpus: missing")
        self.refused(["compare"], 2, "PLAN is required")
        self.refused(["estimate", *TINY, "--seq-len"], 2, "--seq-len")
        self.refused(["estimate", *TINY, "extra"], 2, "extra")

    def test_clusters_that_make_no_sense_are_usage_errors(self):
        for gpus in ("0xH100-80GB", "-1xH100-80GB", "x", "8x", "8xcpu-0GiB", "99999999999999999999xH100-80GB", "8xH100-80GB@-1GiB"):
            self.refused(["estimate", MODEL, f"--gpus={gpus}"], 2)

    def test_models_that_cannot_be_read_end_with_five(self):
        self.refused(["estimate", "no/such-model", "--gpus", "1xH100-80GB"], 5, "no/such-model")
        with tempfile.TemporaryDirectory() as directory:
            for name, text in (("empty.json", ""), ("list.json", "[]"), ("broken.json", '{"model_type": '),
                               ("deep.json", "[" * 100000),
                               ("negative.json", '{"model_type": "llama", "hidden_size": -4096}'),
                               ("huge.json", '{"model_type": "llama", "hidden_size": 9223372036854775807}'),
                               ("zero.json", '{"model_type": "llama", "num_attention_heads": 0}')):
                path = os.path.join(directory, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.refused(["estimate", path, "--gpus", "1xH100-80GB"], 5, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"model_type": "no-such-family"}')
            self.refused(["estimate", path, "--gpus", "1xH100-80GB"], 5, "no-such-family")

    def test_verdicts_have_their_exit_codes(self):
        self.assertEqual(program("estimate", *TINY).returncode, 0)
        self.assertEqual(program("estimate", MODEL, "--gpus", "2xcpu-1MiB").returncode, 3)
        self.assertEqual(program("plan", MODEL, "--gpus", "2xcpu-1MiB").returncode, 4)
        self.assertEqual(program("estimate", *TINY, "--runtime", "pytorch-fsdp2").returncode, 1)

    def test_the_first_line_of_an_estimate_is_the_verdict(self):
        self.assertTrue(program("estimate", *TINY).stdout.startswith("FITS: "))
        line = program("estimate", MODEL, "--gpus", "2xcpu-1MiB").stdout.splitlines()[0]
        self.assertRegex(line, r"^DOES NOT FIT: [\d.]+ of [\d.]+ GiB with vramfit's own engine, \+[\d.]+ in [a-z_]+$")
        self.assertTrue(program("estimate", *TINY, "--runtime", "pytorch-fsdp2").stdout.startswith("NOT MODELLED: "))

    def test_a_compiled_step_has_a_speed_and_no_memory(self):
        job = [MODEL, "--gpus", "2xH100-80GB", "--runtime", "pytorch-fsdp2", "--modeling", "torchtitan", "--attention", "flash"]
        eager = program("estimate", *job).stdout
        for more, name in ((["--compile", "on"], "--compile on"), (["--precision", "fp8"], "--precision fp8")):
            with self.subTest(name):
                done = program("estimate", *job, *more)
                self.assertEqual(done.returncode, 1)
                self.assertTrue(done.stdout.startswith(f"NOT MODELLED: memory of {name} with --runtime pytorch-fsdp2"), done.stdout)
                self.assertRegex(done.stdout, r"\nStep [\d.]+ s \([\d.]+ to [\d.]+\)")
                self.assertRegex(done.stdout, r"speed: from \d+ figures: \d+ ")
                self.assertNotIn("At the peak", done.stdout)
        self.assertIn("At the peak", eager)
        self.assertRegex(program("estimate", MODEL, "--gpus", "2xH100-80GB", "--compile", "on").stdout, "^NOT MODELLED: --compile on with --runtime vramfit")

    def test_figures_for_gpus_say_what_they_were_held_against(self):
        self.assertIn("not real hardware", program("estimate", MODEL, "--gpus", "8xH100-80GB").stdout)
        self.assertNotIn("not real hardware", program("estimate", *TINY).stdout)
        (card,) = json.loads(program("gpus", "H200", "--json").stdout)
        self.assertEqual([card["context_bytes"], card["pytorch_context_bytes"]], [687 << 20, 767 << 20])
        on_one = program("estimate", MODEL, "--gpus", "1xH200", "--offload", "optimizer").stdout
        self.assertIn("(context, measured on such a card; with offload up to 118 MiB more were seen)", on_one)
        self.assertIn("checked against simulation (phantom GPUs) and against jobs on one such card", on_one)
        on_two = program("estimate", MODEL, "--gpus", "2xH200").stdout
        self.assertIn("(context, measured on such a card, and NCCL, not measured)", on_two)
        self.assertIn("not real hardware", on_two)

    def test_without_a_terminal_there_are_no_escapes_and_without_utf8_no_blocks(self):
        self.assertNotIn("\x1b", program("estimate", *TINY).stdout)
        self.assertTrue(program("estimate", *TINY, LC_ALL="C").stdout.isascii())

    def test_escapes_in_names_do_not_reach_the_terminal(self):
        done = program("estimate", "evil\x1b]0;title\x07\nname", "--gpus", "1xH100-80GB")
        self.assertEqual(done.returncode, 5)
        self.assertNotIn("\x1b", done.stderr)
        self.assertNotIn("\x07", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_the_same_command_prints_the_same_text(self):
        self.assertEqual(program("plan", *TINY).stdout, program("plan", *TINY).stdout)

    def test_a_plan_is_written_and_what_breaks_it_is_named(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "plan.json")
            self.assertEqual(program("plan", *TINY, "-o", path).returncode, 0)
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
            self.assertEqual(os.listdir(directory), ["plan.json"])
            run = os.path.join(directory, "run.json")
            for change, words in ((("schema", "vramfit/plan@2"), "not known to this version"),
                                  (("schema", "vramfit/estimate@1"), "is not a plan"),
                                  (("jobs", {}), "unknown key"),
                                  (("clip", "yes"), "plan.json: clip"),
                                  (("job", {**plan["job"], "seq_len": 0}), "plan.json: job.seq_len"),
                                  (("job", {**plan["job"], "global_batch": 77}), "job.global_batch")):
                broken = {**plan, change[0]: change[1]}
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(broken, file)
                self.refused(["compare", path, run], 2, words)

    def test_files_that_cannot_be_read_or_written_are_named(self):
        self.refused(["compare", "/no/such/plan.json", "run.json"], 2, "/no/such/plan.json: No such file or directory")
        self.refused(["compare", "/", "run.json"], 2, "not a regular file")
        done = program("plan", *TINY, "-o", "/no/such/directory/plan.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/directory/plan.json: can't be written", done.stderr)

    def test_no_plan_names_what_would_help(self):
        done = program("plan", MODEL, "--gpus", "2xcpu-1MiB")
        self.assertTrue(done.stdout.startswith("NO PLAN fits 2xcpu-1MiB: the smallest needs "), done.stdout)

    def test_run_refuses_what_it_cannot_execute(self):
        data = ["--data", os.path.join(SOURCE, "docs")]
        self.refused(["run", *TINY, *data, "--device", "phantom"], 2, "--device phantom")
        self.refused(["run", *TINY, *data, "--device", "gpu"], 2, "--device", "known: auto, cpu, cuda")
        done = program("run", *TINY, *data, "--runtime", "pytorch-fsdp2")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "plan.json")
            self.assertEqual(program("plan", *TINY, "-o", path).returncode, 0)
            self.refused(["run", path, *data, "--seq-len", "32"], 2, "a plan decides the job")
            with open(path, encoding="utf-8") as file:
                plan = json.load(file)
            plan["job"]["runtime"] = "pytorch-fsdp2"
            with open(path, "w", encoding="utf-8") as file:
                json.dump(plan, file)
            self.refused(["run", path, *data], 2, "--runtime pytorch-fsdp2")

    def test_run_of_a_plan_for_several_machines_says_what_to_type_on_each(self):
        flags = ["--data", os.path.join(SOURCE, "docs"), "--steps", "5"]
        done = program("run", MODEL, "--gpus", "2x3xcpu-1GiB", *flags)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("vramfit: 2x3xcpu-1GiB: write the plan by `vramfit plan ... -o plan.json` first"), done.stderr)
        with tempfile.TemporaryDirectory(prefix="a plan's ") as directory:
            path = os.path.join(directory, "plan.json")
            self.assertEqual(program("plan", MODEL, "--gpus", "2x3xcpu-1GiB", "-o", path).returncode, 0)
            done = program("run", path, *flags, "-o", "run.json")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            lines = {words[0]: words for words in map(shlex.split, done.stderr.splitlines()[1:]) if words and "--plan" in words}
            self.assertEqual(sorted(lines), ["mpirun", "srun", "torchrun"])
            for words in lines.values():
                program_at = next(i for i, word in enumerate(words) if word.endswith("vramfit-train"))
                self.assertEqual(words[program_at + 1:], ["--plan", path, *flags, "-o", "run.json"])
            self.assertIn("--nnodes 2 --nproc-per-node 3 --node-rank N --master-addr FIRST", " ".join(lines["torchrun"]))
            self.assertIn("--nodes 2 --ntasks-per-node 3 --distribution block", " ".join(lines["srun"]))
            self.assertIn("-np 6 --map-by ppr:3:node -x MASTER_ADDR=FIRST", " ".join(lines["mpirun"]))

    def test_an_allocator_that_the_environment_contradicts_is_a_usage_error(self):
        done = program("run", MODEL, "--gpus", "2xH100-80GB", "--data", SOURCE, PYTORCH_ALLOC_CONF="expandable_segments:False")
        self.assertEqual(done.returncode, 2)
        self.assertIn("PYTORCH_ALLOC_CONF=expandable_segments:False and --allocator expandable", done.stderr)

    def test_models_lists_the_catalog_and_shows_one(self):
        listed = json.loads(program("models", "--json").stdout)
        shown = json.loads(program("models", listed[0]["name"], "--json").stdout)
        self.assertEqual(shown, listed[0])
        self.refused(["models", "lama-3.1-8b"], 5, "did you mean")

    def test_the_program_of_a_step_is_printed_as_the_estimate_counts_it(self):
        flags = [*TINY, "--grad-accum", "4", "--checkpointing", "full"]
        lines = program("program", *flags).stdout.splitlines()
        heads = [line for line in lines if not line.startswith(" ")]
        self.assertEqual(heads[:5], ["load", "first micro-batch", "middle micro-batch, 2 times", "last micro-batch: the same once more",
                                     "update"])
        self.assertTrue(all(head == f"block {i}" for i, head in enumerate(heads[5:])), heads)
        called = {line.split()[2] for line in lines if line.startswith("  call block ")}
        self.assertEqual(called, {head.split()[1] for head in heads[5:]})
        starts = [line.split("#")[1] for line in lines if line.startswith("  start ")]
        waits = [line.split("#")[1] for line in lines if line.startswith("  wait for ")]
        self.assertEqual((sorted(starts), len(starts)), (sorted(waits), len(set(starts))))
        states = sum(int(line.split(", ")[1].split()[0]) for line in lines[:lines.index("first micro-batch")]
                     if " bytes of optimizer_state" in line)
        estimate = json.loads(program("estimate", *flags, "--json").stdout)
        self.assertEqual(states, estimate["ranks"][0]["breakdown"]["optimizer_state"])
        done = program("program", "meta-llama/Llama-3.1-8B", "--gpus", "8xH100-80GB", "--runtime", "pytorch-fsdp2", "--attention", "flash",
                       "--modeling", "torchtitan")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for line in ("last micro-batch of the first step", "update of later steps", "  run aten::mm"):
            self.assertIn(line + "\n", done.stdout)
        self.assertRegex(done.stdout, "  start all_gather over shard.*, on stream all_gather\n")

    def test_unknown_kinds_of_allow_are_refused(self):
        self.refused(["plan", *TINY, "--allow", "precison"], 2, 'did you mean "precision"?')
        self.refused(["plan", *TINY, "--allow", "precision:bf17"], 2, "bf17")

    def test_completion_scripts_know_every_job_flag(self):
        with open(os.path.join(SOURCE, "tests", "cli", "job_flags.txt"), encoding="utf-8") as file:
            flags = [line.split()[0] for line in file]
        for shell in ("bash", "zsh", "fish"):
            script = program("completion", shell).stdout
            for flag in flags:
                self.assertIn(flag if shell != "fish" else f"-l {flag[2:]}", script, shell)
        self.refused(["completion", "tcsh"], 2, "known: bash, zsh, fish")

    def test_bash_accepts_its_completion_script(self):
        script = program("completion", "bash").stdout
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
