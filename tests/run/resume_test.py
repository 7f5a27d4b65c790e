"""A resumed run equals an uninterrupted one: to the byte with the same number of ranks, within rounding with another."""

import json
import os
import re
import shutil
import struct
import subprocess
import time
import unittest

import checkpoints
from checkpoints import Workplace, contents, copied, steps_in


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


class Resume(unittest.TestCase):
    def interrupted(self, place, ranks=1, job=(), flags=()):
        """A run of six steps that saves every second one, and what is saved without what follows step 2."""
        saved = place.fresh("saved")
        whole = place.run("--save", saved, "--save-every", "2", *flags, ranks=ranks, job=job)
        self.assertEqual(whole.code, 0, whole.errors)
        self.assertEqual(steps_in(saved), [2, 4, 6])
        for step in (4, 6):
            shutil.rmtree(os.path.join(saved, f"step-{step:08}"))
        return whole, saved

    def test_resuming_in_the_same_world_is_exact_to_the_byte(self):
        worlds = [("llama", 1, ()), ("gpt2", 1, ("--micro-batch", "1")), ("qwen2", 2, ("--micro-batch", "1")), ("bert", 2, ("--sharding", "no-shard")),
                  ("llama", 4, ("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2", "--optimizer", "lion")), ("gemma2", 2, ("--sharding", "shard-grad-op")),
                  ("llama", 2, ("--precision", "bf16-mixed")), ("llama", 2, ("--precision", "bf16-pure")), ("llama", 2, ("--freeze", "*.mlp.*", "--frozen-dtype", "bf16")),
                  ("llama", 2, ("--gradient-mask", "keep:0.3", "--accumulate", "unsharded")),
                  ("llama", 2, ("--precision", "fp16-mixed", "--loss-scale", "dynamic:1e6:2")),
                  ("llama", 2, ("--precision", "fp16-mixed", "--loss-scale", "dynamic:1e6:2", "--optimizer", "sgd")),
                  ("llama", 2, ("--optimizer", "adamw-8bit", "--sharding", "full-shard")), ("gpt2", 4, ("--optimizer", "adamw-4bit", "--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")),
                  ("llama", 2, ("--method", "qlora", "--lora-rank", "4", "--dora", "on", "--lora-dropout", "0.1")), ("qwen2", 4, ("--method", "lora", "--lora-rank", "4", "--quantization", "int8", "--sharding", "hybrid-shard",
                                                                                         "--mesh", "replicate=2,shard=2")),
                  ("llama", 2, ("--freeze", "layers:0", "--quantization", "nf4")),
                  ("llama", 2, ("--optimizer", "adamw-fp8", "--sharding", "full-shard")),
                  ("llama", 2, ("--optimizer", "adamw-fp8-blocks", "--sharding", "full-shard")),
                  ("llama", 2, ("--master-dtype", "fp16", "--sharding", "full-shard", "--gradient-dtype", "fp8", "--optimizer", "adamw-fp8")),
                  ("llama", 2, ("--optimizer", "adafactor", "--sharding", "full-shard")),
                  ("llama", 2, ("--precision", "bf16-pure", "--state-dtype", "fp32"))]
        for family, ranks, job in worlds:
            with self.subTest(family=family, ranks=ranks, job=job):
                place = Workplace(family)
                whole, saved = self.interrupted(place, ranks, job)
                rest = place.run("--resume", saved, ranks=ranks, job=job)
                self.assertEqual(rest.code, 0, rest.errors)
                self.assertEqual(rest.losses, whole.losses[2:])
                self.assertEqual(rest.parameters, whole.parameters)
                self.assertEqual(rest.record["loss_scale"], whole.record["loss_scale"][2:])
                self.assertEqual(rest.record["skipped_steps"], [step for step in whole.record["skipped_steps"] if step > 2])

    def test_losses_go_on_in_another_world_sharding_and_wrapping(self):
        place = Workplace("llama")
        whole, saved = self.interrupted(place, 2)
        for ranks, job in [(1, ()), (4, ()), (4, ("--sharding", "no-shard")), (2, ("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=1")),
                           (1, ("--micro-batch", "1")), (2, ("--wrap-embeddings", "off"))]:
            with self.subTest(ranks=ranks, job=job):
                rest = place.run("--resume", saved, ranks=ranks, job=job)
                self.assertEqual(rest.code, 0, rest.errors)
                self.assertLess(relative(rest.losses, whole.losses[2:]), 1e-6)

    def test_losses_go_on_in_another_world_whatever_is_tied_or_packed(self):
        for family, ranks, elsewhere in [("gpt2", 2, 4), ("qwen3", 4, 1), ("gemma", 1, 2)]:
            with self.subTest(family=family):
                place = Workplace(family)
                whole, saved = self.interrupted(place, ranks)
                rest = place.run("--resume", saved, ranks=elsewhere)
                self.assertEqual(rest.code, 0, rest.errors)
                self.assertLess(relative(rest.losses, whole.losses[2:]), 1e-6)
                fresh = place.run(ranks=elsewhere)   # the comparison can fail: a run that resumed nothing has other losses
                self.assertGreater(relative(fresh.losses[:4], whole.losses[2:]), 1e-4)

    def test_averages_of_rows_and_columns_and_scales_of_rows_go_on_in_another_world(self):
        place = Workplace("llama")
        # A weight on the border of two fp16 numbers may have the other one in another world.
        for job, most in [(("--optimizer", "adafactor"), 1e-6), (("--master-dtype", "fp16"), 1e-5)]:
            whole, saved = self.interrupted(place, 2, (*job, "--sharding", "full-shard"))
            for ranks, sharding in [(4, "full-shard"), (1, "no-shard")]:
                with self.subTest(job=job, ranks=ranks):
                    rest = place.run("--resume", saved, ranks=ranks, job=(*job, "--sharding", sharding))
                    self.assertEqual(rest.code, 0, rest.errors)
                    self.assertLess(relative(rest.losses, whole.losses[2:]), most)

    def test_gradients_that_were_sent_in_fp8_go_on_where_nothing_is_sent(self):
        place = Workplace("llama")
        whole, saved = self.interrupted(place, 2, ("--gradient-dtype", "fp8-sent", "--sharding", "full-shard"))
        for ranks, job in [(2, ("--gradient-dtype", "fp8-sent", "--sharding", "full-shard")), (2, ("--gradient-dtype", "fp8", "--sharding", "full-shard")), (1, ("--gradient-dtype", "fp8"))]:
            with self.subTest(ranks=ranks, job=job):
                rest = place.run("--resume", saved, ranks=ranks, job=job)
                self.assertEqual(rest.code, 0, rest.errors)
                self.assertLess(relative(rest.losses, whole.losses[2:]), 1e-2)
        other = place.run("--resume", saved, ranks=1)
        self.assertEqual(other.code, 2, other.errors)
        self.assertIn("--gradient-dtype is fp8 there", other.errors)

    def test_gradients_keep_their_dtype_whether_or_not_a_flag_says_it(self):
        place = Workplace("llama")
        whole, saved = self.interrupted(place, 1, ("--gradient-dtype", "bf16"))
        self.assertEqual(place.run("--resume", saved, ranks=1, job=("--gradient-dtype", "bf16")).losses, whole.losses[2:])
        other = place.run("--resume", saved, ranks=1)
        self.assertEqual(other.code, 2, other.errors)
        self.assertIn("--gradient-dtype is bf16 there", other.errors)
        whole, saved = self.interrupted(place, 1)
        self.assertEqual(place.run("--resume", saved, ranks=1, job=("--gradient-dtype", "fp32")).losses, whole.losses[2:])

    def test_states_in_blocks_need_as_many_shards_as_in_the_run_that_saved(self):
        place = Workplace("llama")
        job = ("--optimizer", "adamw-8bit", "--sharding", "full-shard")
        whole, saved = self.interrupted(place, 2, job)
        replicas = ("--optimizer", "adamw-8bit", "--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")
        rest = place.run("--resume", saved, ranks=4, job=replicas)
        self.assertEqual(rest.code, 0, rest.errors)
        self.assertLess(relative(rest.losses, whole.losses[2:]), 1e-3)
        other = place.run("--resume", saved, ranks=4, job=job)
        self.assertEqual(other.code, 2, other.errors)
        self.assertIn("as many ranks as in the run that saved", other.errors)

    def test_codes_need_as_many_shards_as_in_the_run_that_saved_and_no_weights(self):
        place = Workplace("llama")
        job = ("--method", "qlora", "--lora-rank", "4")
        whole, saved = self.interrupted(place, 2, job)
        # Neither the initial weights nor another format of codes are asked for: the codes are those that were saved.
        replicas = place.run("--resume", saved, ranks=4, job=(*job, "--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2"))
        self.assertEqual(replicas.code, 0, replicas.errors)
        self.assertLess(relative(replicas.losses, whole.losses[2:]), 1e-5)
        for ranks, other, words in ((1, job, "as many ranks as in the run that saved"), (2, ("--method", "lora", "--lora-rank", "4"), "--method is qlora there and lora in this run"),
                                    (2, (*job, "--quantization", "nf4"), "--quantization is nf4-double there and nf4 in this run")):
            rest = place.run("--resume", saved, ranks=ranks, job=other)
            self.assertEqual(rest.code, 2, rest.errors)
            self.assertIn(words, rest.errors)

    def test_codes_are_those_that_were_saved_whatever_weights_they_were_made_of(self):
        place = Workplace("llama")
        base = place.path("base")
        self.assertEqual(place.run("--save-full", base).code, 0)
        for job, layers, bytes_of_number in ((("--method", "qlora", "--lora-rank", "4"), 3, 0.5), (("--freeze", "layers:0", "--quantization", "int8"), 1, 1)):
            with self.subTest(job=job):
                other = place.run(ranks=2, job=job)
                whole, saved = self.interrupted(place, 2, job, ("--weights", base))
                self.assertNotEqual(other.losses[2:], whole.losses[2:])
                rest = place.run("--resume", saved, ranks=2, job=job)
                self.assertEqual(rest.code, 0, rest.errors)
                self.assertEqual(rest.losses, whole.losses[2:])
                self.assertEqual(rest.parameters, whole.parameters)
                numbers = layers * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)  # of tests/models/llama.json
                self.assertGreater(self.bytes_of_codes(saved), bytes_of_number * numbers)
                self.assertLess(self.bytes_of_codes(saved), (bytes_of_number + 0.1) * numbers)  # with scales

    def bytes_of_codes(self, saved):
        """Of all ranks; of a quantized matrix there is nothing else."""
        total, kinds = 0, {}
        for rank in range(2):
            with open(os.path.join(saved, "step-00000002", f"rank-{rank:05}.safetensors"), "rb") as f:
                header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
            for name, tensor in header.items():
                kind, parameter = name.rsplit("@", 1)[0].split("/", 1)
                kinds.setdefault(parameter, set()).add(kind)
                if kind == "codes":
                    total += tensor["data_offsets"][1] - tensor["data_offsets"][0]
        self.assertTrue(all(found == {"codes"} for found in kinds.values() if "codes" in found))
        return total

    def test_a_run_that_resumes_saves_where_it_began(self):
        place = Workplace()
        whole, saved = self.interrupted(place)
        rest = place.run("--resume", saved, "--save", saved, "--save-every", "1", "--keep", "2")
        self.assertEqual(rest.code, 0, rest.errors)
        self.assertEqual(steps_in(saved), [5, 6])
        done = place.run("--resume", saved)
        self.assertEqual((done.code, done.losses, done.parameters), (0, [], whole.parameters))

    def test_a_run_that_differs_is_a_usage_error_that_names_the_flag(self):
        place = Workplace()
        _, saved = self.interrupted(place)
        for flags, word in [(("--seed", "8"), "--seed"), (("--steps", "7"), "--steps"), (("--lr", "0.02"), "--lr"), (("--clip", "0"), "--clip")]:
            run = place.run("--resume", saved, *flags)
            self.assertEqual(run.code, 2, run.errors)
            self.assertIn(word, run.errors)
        for job, word in [(("--global-batch", "8"), "--global-batch"), (("--seq-len", "24"), "--seq-len"), (("--precision", "bf16-mixed"), "--compute-dtype"),
                          (("--freeze", "*.mlp.*"), "--freeze"), (("--gradient-mask", "keep:0.5"), "--gradient-mask")]:
            run = place.run("--resume", saved, job=job)
            self.assertEqual(run.code, 2, run.errors)
            self.assertIn(word, run.errors)
        other = Workplace("gpt2").run("--resume", saved)
        self.assertEqual(other.code, 2, other.errors)
        self.assertIn("model", other.errors)
        with open(place.data, "r+b") as f:
            f.write(b"\1\0\0\0" * 20000)
        run = place.run("--resume", saved)
        self.assertEqual(run.code, 2, run.errors)
        self.assertIn("--data", run.errors)

    def test_gradient_masks_are_known_by_what_their_file_holds_not_by_its_path(self):
        place = Workplace()
        with open(place.model, encoding="utf-8") as f:
            elements = json.load(f)["hidden_size"]
        header = json.dumps({"model.norm.weight": {"dtype": "U8", "shape": [elements], "data_offsets": [0, elements]}}).encode()

        def masks(path, first):
            with open(path, "wb") as f:
                f.write(struct.pack("<Q", len(header)) + header + bytes([first] + [1] * (elements - 1)))
            return ("--gradient-mask", f"file:{path}")

        job = masks(place.path("masks.safetensors"), 0)
        whole, saved = self.interrupted(place, 2, job)
        moved = masks(place.path("moved.safetensors"), 0)
        for where in (job, moved):
            rest = place.run("--resume", saved, ranks=2, job=where)
            self.assertEqual((rest.code, rest.losses, rest.parameters), (0, whole.losses[2:], whole.parameters), rest.errors)
        for changed in (masks(place.path("masks.safetensors"), 1), ("--gradient-mask", "none")):
            run = place.run("--resume", saved, ranks=2, job=changed)
            self.assertEqual(run.code, 2, run.errors)
            self.assertIn("--gradient-mask is file, crc32c", run.errors)
            self.assertIn("give the same again, or begin a new run", run.errors)
            self.assertEqual(len(set(re.findall("crc32c ([0-9a-f]{8})", run.errors))), 1 if changed[1] == "none" else 2, run.errors)

    def test_checkpoints_of_another_run_are_never_written_over(self):
        place = Workplace()
        _, saved = self.interrupted(place)
        run = place.run("--save", saved)
        self.assertEqual(run.code, 2, run.errors)
        self.assertIn("--resume", run.errors)
        self.assertEqual(steps_in(saved), [2])
        other = place.run("--save", saved, "--resume", copied(saved, place.path("copy")))
        self.assertEqual(other.code, 2, other.errors)

    def test_a_second_run_with_the_same_empty_directory_is_refused_with_who_holds_it(self):
        place = Workplace("llama", steps=100000)  # it is ended long before
        for flag in ("--save", "--save-full"):
            saved = place.fresh("saved")
            lock = os.path.join(saved, ".vramfit-lock")
            with self.subTest(flag=flag), subprocess.Popen(place.command(flag, saved, own=True), stderr=subprocess.DEVNULL) as first:
                try:
                    while not (os.path.exists(lock) and os.path.getsize(lock) > 0):
                        self.assertIsNone(first.poll())
                        time.sleep(0.02)
                    second = place.run(flag, saved)
                    self.assertEqual(second.code, 2, second.errors)
                    self.assertRegex(second.errors, f"{flag} {saved}: in use by another run .pid {first.pid} on .*, started 20..-")
                    self.assertIsNone(first.poll())
                    self.assertEqual(os.listdir(saved), [".vramfit-lock"])
                finally:
                    first.kill()

    def test_saving_allocates_no_tensor_memory_of_its_own(self):
        place = Workplace()
        events = [place.path(name) for name in ("plain", "saving")]
        for directory, flags in zip(events, ((), ("--save", place.path("saved"), "--save-every", "1"))):
            run = place.run("--events", directory, *flags, ranks=2)
            self.assertEqual(run.code, 0, run.errors)
        for rank in range(2):
            self.assertEqual(*(contents(os.path.join(directory, f"rank{rank}.jsonl")) for directory in events))

    def test_a_directory_without_checkpoints_is_said(self):
        place = Workplace()
        for directory in (place.path("nowhere"), place.directory.name):
            run = place.run("--resume", directory)
            self.assertEqual(run.code, 5, run.errors)
            self.assertEqual(len(run.errors.splitlines()), 1)
            self.assertIn("no complete checkpoint", run.errors)
        run = place.run("--save-every", "2")
        self.assertEqual(run.code, 2, run.errors)


if __name__ == "__main__":
    checkpoints.use_forks()
    unittest.main()
