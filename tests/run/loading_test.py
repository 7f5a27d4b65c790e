"""Initial weights: whichever rank reads them, from one file or several, each rank starts with the same bytes."""

import json
import os
import shutil
import struct
import subprocess
import unittest

from checkpoints import BIN, Workplace, contents
from place import free_port

WORLDS = [(1, ()), (2, ()), (2, ("--sharding", "no-shard")), (4, ("--sharding", "shard-grad-op")),
          (4, ("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")), (4, ("--precision", "bf16-pure"))]


def read_safetensors(path):
    data = contents(path)
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (t, data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]]) for name, t in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (about, values) in tensors.items():
        header[name] = {"dtype": about["dtype"], "shape": about["shape"], "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def rounded_to_bf16(tensors):
    """The upper halves of fp32 numbers: bf16, rounded towards zero."""
    return {name: ({**about, "dtype": "BF16"}, b"".join(values[i + 2:i + 4] for i in range(0, len(values), 4))) for name, (about, values) in tensors.items()}


def write_indexed(folder, tensors, files=3):
    names = sorted(tensors)
    shards = {f"model-{i}.safetensors": names[i::files] for i in range(files)}
    os.makedirs(folder, exist_ok=True)
    for file, held in shards.items():
        write_safetensors(os.path.join(folder, file), {name: tensors[name] for name in held})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}, f)


class Loading(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace("gpt2", steps=2)
        model = cls.place.path("model")
        done = cls.place.run("--save-full", model)
        assert done.code == 0, done.errors
        cls.tensors = read_safetensors(os.path.join(model, "model.safetensors"))
        write_indexed(cls.place.path("indexed"), rounded_to_bf16(cls.tensors))
        write_safetensors(cls.place.path("single.safetensors"), rounded_to_bf16(cls.tensors))

    def test_rank_0_or_each_rank_one_file_or_many_give_the_same_run(self):
        for ranks, job in WORLDS:
            results = []
            for weights, load in [("single.safetensors", "each"), ("indexed", "rank0")]:
                done = self.place.run("--weights", self.place.path(weights), ranks=ranks, job=(*job, "--load", load))
                self.assertEqual(done.code, 0, done.errors)
                results.append((done.losses, done.parameters))
            with self.subTest(ranks=ranks, job=job):
                self.assertEqual(results[0], results[1])

    def test_where_rank_0_reads_other_ranks_need_no_file(self):
        plan = self.place.plan(2, ("--load", "rank0"))
        here, there = self.place.fresh("here"), self.place.fresh("there")
        os.makedirs(there)
        shutil.copytree(self.place.path("indexed"), os.path.join(here, "weights"))
        port = str(free_port())
        command = [os.path.abspath(os.path.join(BIN, "vramfit-train")), "--plan", plan, "--data", self.place.data, *self.place.flags, "--weights", "weights",
                   "-o", self.place.path("run.json")]
        ranks = []
        for rank, folder in enumerate((here, there)):
            place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(subprocess.Popen(command, cwd=folder, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True))
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], errors)
        expected = self.place.run("--weights", self.place.path("indexed"), ranks=2, job=("--load", "each"))
        self.assertEqual(json.loads(contents(self.place.path("run.json")))["loss"], expected.losses)

    def test_what_is_wrong_with_the_weights_ends_all_ranks_with_the_reason(self):
        for name, load, spoil, said in [("short", "rank0", lambda f: os.truncate(f, os.path.getsize(f) - 1), "truncated"), ("gone", "rank0", os.remove, "No such file"),
                                        ("other", "each", lambda f: write_safetensors(f, {}), "isn't in model-1.safetensors")]:
            with self.subTest(name=name):
                folder = self.place.fresh(name)
                shutil.copytree(self.place.path("indexed"), folder)
                spoil(os.path.join(folder, "model-1.safetensors"))
                done = self.place.run("--weights", folder, ranks=2, job=("--load", load))
                self.assertEqual(done.code, 5, done.errors)
                self.assertIn(said, done.errors)

    def test_a_run_of_a_rank_0_plan_resumes(self):
        place = Workplace("llama", steps=4)
        saved = place.fresh("saved")
        job = ("--load", "rank0")
        whole = place.run("--save", saved, "--save-every", "2", ranks=2, job=job)
        self.assertEqual(whole.code, 0, whole.errors)
        shutil.rmtree(os.path.join(saved, "step-00000004"))
        rest = place.run("--resume", saved, ranks=2, job=job)
        self.assertEqual((rest.code, rest.losses, rest.parameters), (0, whole.losses[2:], whole.parameters))


if __name__ == "__main__":
    unittest.main()
