"""A plan, tokens, and ranks that are started without `vramfit run`, as launchers start them."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODEL = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "tests", "models", "llama.json")
VOCABULARY = 307
FULL = "full" in sys.argv[1:]  # an argument of the test
if FULL:
    sys.argv.remove("full")
LAUNCHERS = ("SLURM", "OMPI", "PMI", "MPI", "MASTER", "RANK", "WORLD", "LOCAL", "TORCHELASTIC", "GLOO")


def contents(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def in_full(case):
    """What waits for time-outs, or repeats with other variables: too long for CI."""
    return unittest.skipUnless(FULL, "runs with ./test --full")(case)


def without_steps(text):
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("step "))


def open_mpi(rank, world=4, local_world=4, address="127.0.0.1", port=29500):
    """The variables of a rank as Open MPI sets them."""
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": world, "OMPI_COMM_WORLD_LOCAL_RANK": rank % local_world,
            "OMPI_COMM_WORLD_LOCAL_SIZE": local_world, "MASTER_ADDR": address, "MASTER_PORT": port}


def free_port():
    """A port of loopback on which nobody listens, and which Linux gives to no connection meanwhile: those it gives begin at 32768."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def shortest(run, enough=5, tries=3):
    """The least of the seconds that `run()` returns: again while it is not below `enough`, as a busy machine may hold up any one run."""
    least = run()
    while least >= enough and tries > 1:
        least, tries = min(least, run()), tries - 1
    return least


def process_of_rank(directory, rank):
    """Id of the vramfit-train that was placed as `rank` by torchrun or `vramfit run`, and works in `directory`."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line, open(f"/proc/{pid}/environ", "rb") as environment:
                words = line.read()
                if b"vramfit-train\0" in words.split(b"--plan")[0] and directory.encode() in words and b"torch" not in words.split(b"\0")[0]:
                    if f"RANK={rank}".encode() in environment.read().split(b"\0"):
                        return int(pid)
        except OSError:
            pass
    return None


class Place(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="vramfit-ranks-")
        self.addCleanup(self.directory.cleanup)
        with open(self.path("tokens.bin"), "wb") as f:
            f.write(struct.pack("<20000I", *((7 * i * i + i) % VOCABULARY for i in range(20000))))
        self.started = []
        self.addCleanup(self.end_all)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def plan(self, gpus, *flags, batch=4):
        path = self.path("plan.json")
        done = subprocess.run([os.path.join(BIN, "vramfit"), "plan", MODEL, "--gpus", gpus, "--seq-len", "32", "--global-batch", str(batch), *flags, "-o", path],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def flags(self, steps=3, timeout=600):
        return ["--data", self.path("tokens.bin"), "--token-bytes", "4", "--threads", "1", "--timeout", str(timeout), "--steps", str(steps)]

    def train(self, plan, *more, **flags):
        return [os.path.join(BIN, "vramfit-train"), "--plan", plan, *self.flags(**flags), *more]

    def start(self, command, environment=()):
        """Its output goes to a file of its own, as srun's --output does."""
        output = self.path(f"output{len(self.started)}")
        own = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        own.update((name, str(value)) for name, value in dict(environment).items())
        with open(output, "w", encoding="utf-8") as f:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f, env=own)
        self.started.append((process, output))
        return process

    def end_all(self):
        for process, _ in self.started:
            process.kill()
            process.wait()
        self.started = []

    def wait_for(self, index, words, seconds=120):
        """Until what was started as number `index` has written `words`."""
        process, output = self.started[index]
        last = time.monotonic() + seconds
        while words not in contents(output):
            self.assertIsNone(process.poll(), contents(output))
            self.assertLess(time.monotonic(), last, contents(output))
            time.sleep(0.02)

    def ends(self, seconds=120):
        """Exit codes and outputs of all that was started; fails when something is left after `seconds`."""
        last = time.monotonic() + seconds
        codes = []
        for process, output in self.started:
            try:
                codes.append(process.wait(max(0.1, last - time.monotonic())))
            except subprocess.TimeoutExpired:
                self.fail(f"still there after {seconds} s: {process.args}\n{without_steps(contents(output))}")
        return codes, [without_steps(contents(output)) for _, output in self.started]

    def all_well(self):
        codes, outputs = self.ends()
        self.assertEqual(codes, [0] * len(codes), "\n".join(outputs))

    def losses(self):
        return json.loads(contents(self.path("run.json")))["loss"]

    def last_line(self, output):
        lines = [line for line in output.splitlines() if line.startswith("vramfit-train: ")]
        self.assertEqual(len(lines), 1, output)
        return lines[0]

    def assert_cause(self, outputs, culprit, reason, says_so=True):
        """One line a rank: the culprit's own (unless it could not speak), and the same reason in everybody else's."""
        for rank, output in enumerate(outputs):
            if rank == culprit and not says_so:
                continue
            line = self.last_line(output)
            own = rf"rank {culprit} on \S+:? ?{reason}"
            others = rf"rank {rank} on \S+: stopped because another rank failed: {own}"
            self.assertRegex(line, f"^vramfit-train: {own if rank == culprit else others}")

