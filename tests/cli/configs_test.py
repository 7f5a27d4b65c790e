"""Configurations as their tools document them: the job that each is, and that every one of its keys is spoken of."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("VRAMFIT_SOURCE_DIR", ".")).resolve()
PROGRAM = os.path.abspath(os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit"))
EXAMPLES = SOURCE / "tests" / "cli" / "configs" / "examples"
JOBS = EXAMPLES.parent / "jobs.json"


def program(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=EXAMPLES)


def imported(*files):
    done = program("import", "--json", *files)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def keys_of(file):
    """The file's outermost keys that have a value."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return list(json.loads(text))
    if file.suffix == ".toml":
        return re.findall(r"^\[(\w+)\]", text, re.M)
    lines = text.splitlines() + [""]
    return [line.split(":")[0] for line, following in zip(lines, lines[1:])
            if re.match(r"\w+:", line) and (line.split(":", 1)[1].strip() not in ("", "null") or following.startswith((" ", "-")))]


def leave_out_sharding(*answers):
    """The command says what several GPUs would have; on the one of these jobs nothing is sharded."""
    for answer in answers:
        del answer["job"]["sharding"]


class Configs(unittest.TestCase):
    def test_each_example_is_the_job_that_it_was_checked_to_be(self):
        jobs = json.loads(JOBS.read_text(encoding="utf-8"))
        self.assertEqual(sorted(jobs), sorted(file.name for file in EXAMPLES.iterdir()))
        for name, (command, unmodelled) in jobs.items():
            with self.subTest(name):
                answer = imported(name)
                self.assertEqual(answer["command"], command)
                self.assertEqual([finding.get("key", finding["says"]) for finding in answer["not_modelled"]], unmodelled)

    def test_no_key_is_dropped_in_silence(self):
        for file in EXAMPLES.iterdir():
            if file.suffix == ".sh":
                continue
            answer = imported(file.name)
            said = {finding["key"].split(".")[0] for kind in ("understood", "ignored", "not_modelled") for finding in answer[kind]
                    if finding.get("file") == file.name}
            keys = keys_of(file)
            self.assertTrue(keys, file.name)
            self.assertEqual([key for key in keys if key not in said], [], file.name)

    def test_findings_have_the_line_of_their_key(self):
        answer = imported("trl_lora.yaml")
        lines = (EXAMPLES / "trl_lora.yaml").read_text(encoding="utf-8").splitlines()
        for finding in answer["understood"]:
            self.assertTrue(lines[finding["line"] - 1].startswith(finding["key"] + ":"), finding)

    def test_the_command_that_is_printed_can_be_typed(self):
        for files, gpus in ((["axolotl_full.yaml"], "1xH100-80GB"), (["trl_sft.yaml", "accelerate_fsdp2.yaml"], None),
                            (["torchtitan_8b.toml"], "8xH100-80GB"), (["llama_factory_full.yaml"], "8xH100-80GB")):
            command = imported(*files)["command"].replace("CARD", "H100-80GB").replace("CLUSTER", gpus or "").split()
            done = program(*command[1:])
            self.assertIn(done.returncode, (0, 1, 3), done.stderr)
            if done.returncode == 1:  # no rules: it names what answers
                self.assertRegex(done.stdout, "NOT MODELLED: .*vramfit rehearse")

    def test_a_job_of_another_tool_is_estimated_as_its_command_says(self):
        done = program("estimate", "--job", "axolotl_full.yaml", "--gpus", "1xH100-80GB", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("axolotl_full.yaml is axolotl's configuration", done.stderr)
        command = imported("axolotl_full.yaml")["command"].replace("CLUSTER", "1xH100-80GB").split()
        typed = json.loads(program(*command[1:], "--json").stdout)
        answer = json.loads(done.stdout)
        leave_out_sharding(answer, typed)
        for key in ("job", "ranks", "verdict", "stack"):
            self.assertEqual(answer[key], typed[key])
        self.assertIn("--micro-batch", " ".join(typed["assumptions"] + [command[0]]) + "--micro-batch")
        self.assertIn("axolotl trains with its Trainer", " ".join(answer["assumptions"]))

    def test_what_is_not_modelled_is_the_verdict(self):
        done = program("estimate", "--job", "axolotl_qlora.yaml", "--gpus", "2xRTX4090")
        self.assertEqual(done.returncode, 1)
        self.assertIn("NOT MODELLED: axolotl_qlora.yaml:14: plugins", done.stdout)
        self.assertNotIn("own engine needs", done.stdout, "what the key asks for isn't in that figure either")
        done = program("plan", "--job", "axolotl_qlora.yaml", "--gpus", "2xRTX4090")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not modelled: axolotl_qlora.yaml:14: plugins", done.stderr)

    def test_the_files_number_of_gpus_is_used_and_a_missing_card_is_asked_for(self):
        done = program("estimate", "--job", "trl_sft.yaml", "--job", "accelerate_fsdp2.yaml")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--gpus 2x8xH100-80GB", done.stderr)
        done = program("estimate", "--job", "trl_sft.yaml", "--job", "accelerate_fsdp2.yaml", "--gpus", "H100-80GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("with TRL's SFTTrainer", done.stdout)
        self.assertIn("on 2x8xH100-80GB", done.stdout)

    def test_flags_come_after_the_file(self):
        done = program("estimate", "--job", "axolotl_full.yaml", "--gpus", "1xH100-80GB", "--seq-len", "1024", "--json")
        self.assertEqual(json.loads(done.stdout)["job"]["seq_len"], 1024)

    def test_rows_without_a_limit_need_a_length(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "sft.yaml")
            file.write_text("model_name_or_path: gpt2\ndataset_name: d\noutput_dir: o\nmax_length: null\n", encoding="utf-8")
            asked = ["estimate", "--job", str(file), "--gpus", "1xH100-80GB"]
            done = program(*asked)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--seq-len: missing", done.stderr)
            self.assertIn("sft.yaml:4: max_length", done.stderr)
            self.assertEqual(program(*asked, "--seq-len", "512").returncode, 0)

    def test_a_command_and_the_file_that_it_is_of_are_one_estimate(self):
        recipe = ("model:\n  _component_: torchtune.models.llama3_2.lora_llama3_2_1b\n  lora_attn_modules: [q_proj, v_proj]\n"
                  "tokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  path: p\n  max_seq_len: null\n"
                  "optimizer:\n  _component_: torch.optim.AdamW\n  fused: true\nbatch_size: 2\ndtype: bf16\n"
                  "loss:\n  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss\n")
        trainer = "output_dir: o\nper_device_train_batch_size: 2\nmax_length: null\nmax_grad_norm: 0\n"
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("lora.yaml", recipe), ("sft.yaml", trainer)):
                file = pathlib.Path(folder, name)
                file.write_text(text, encoding="utf-8")
                answer = imported(str(file))
                self.assertFalse(answer["clip"])
                command = answer["command"].replace("MODEL", "meta-llama/Llama-3.2-1B").replace("CLUSTER", "1xH100-80GB")
                self.assertIn(" --seq-len LONGEST", command)
                typed = program(*command.replace("LONGEST", "512").split()[1:], "--json")
                asked = program("estimate", "meta-llama/Llama-3.2-1B", "--job", str(file), "--gpus", "1xH100-80GB", "--seq-len", "512", "--json")
                self.assertEqual((typed.returncode, asked.returncode), (0, 0), (typed.stderr, asked.stderr))
                one, other = json.loads(typed.stdout), json.loads(asked.stdout)
                leave_out_sharding(one, other)
                for key in ("job", "clip", "ranks", "speed", "verdict", "stack"):
                    self.assertEqual(one[key], other[key], (name, key))
                self.assertFalse(one["clip"])

    def test_a_plan_for_the_tool_itself_has_the_tools_figures(self):
        with tempfile.TemporaryDirectory() as folder:
            plan = str(pathlib.Path(folder, "plan.json"))
            for stack, tool, note in (("trl", "trl", ""), ("trl-dpo", "trl", ""), ("torchtune", "torchtune", ""),
                                      ("deepspeed", "deepspeed", "Note: the plan's figures hold for this tool if what isn't carried is set as the plan has it"),
                                      ("transformers", "trl", "Note: the plan's figures are for transformers' Trainer; ask for the tool's: vramfit estimate")):
                made = program("plan", "meta-llama/Llama-3.2-1B", "--gpus", "1xH100-80GB", "--stack", stack, "--seq-len", "512", "--micro-batch", "1",
                               "--grad-accum", "1", "--checkpointing", "full", "-o", plan)
                self.assertEqual(made.returncode, 0, made.stderr)
                said = program("export", plan, "--to", tool).stdout
                self.assertEqual("Note: the plan's figures" in said, bool(note), (stack, said))
                self.assertIn(note, said)

    def test_what_cannot_be_read_is_one_line(self):
        for arguments in ([], ["missing.yaml"], ["jobs.json"], ["--", "ls"], ["."]):
            done = program("import", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
