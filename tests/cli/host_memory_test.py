"""Running out of host memory is said in one line, wherever it happens: never a signal, never a half answer."""

import json
import os
import resource
import subprocess
import tempfile
import unittest

PROGRAM = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
MIB = 1 << 20
LOADER = 127  # the program's libraries found no place
LOADER_ROOM = 16 << 10

# Many layers, so that there is something to run out with.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
          "intermediate_size": 96, "num_hidden_layers": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 128}


def run_within(limit, arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=600, check=False,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


def has_begun(done):
    """Whether main was reached: the loader, then the C++ library's own initializers end a program that has less."""
    return done.returncode != LOADER and "terminate called without an active exception" not in done.stderr


class HostMemory(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.config = os.path.join(self.directory.name, "config.json")
        with open(self.config, "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)

    def check_every_limit(self, arguments, most_tries, step=MIB):
        """From where the program starts to where it has enough, or for so many tries."""
        done = None
        limit = (os.path.getsize(PROGRAM) // MIB + 1) * MIB  # with less, the kernel can't even map the program
        # Within a few pages of where its messages begin, the loader itself ends by a signal: a little more shows that it was the loader.
        while not has_begun(done := run_within(limit, arguments)) or not has_begun(run_within(limit + LOADER_ROOM, arguments)):
            limit += step
        ended = 0
        for _ in range(most_tries):
            if done.returncode == 0:
                break
            self.assertEqual((done.returncode, done.stderr), (1, "vramfit: out of host memory\n"), (arguments, limit))
            ended += 1
            limit += step
            done = run_within(limit, arguments)
        self.assertGreater(ended, 0, arguments)

    def test_an_estimate_ends_with_one_line(self):
        self.check_every_limit(["estimate", self.config, "--gpus", "8xH100-80GB", "--seq-len", "128"], 30)

    def test_a_plan_ends_with_one_line(self):
        self.check_every_limit(["plan", self.config, "--gpus", "8xH100-80GB", "--seq-len", "128"], 6)

    def test_a_list_of_models_ends_with_one_line(self):
        self.check_every_limit(["models"], 20, step=MIB // 16)


if __name__ == "__main__":
    unittest.main()
