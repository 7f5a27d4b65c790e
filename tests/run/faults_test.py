"""What goes wrong while a job runs: one clear line, the right exit code, and no process left behind."""

import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
import unittest

from place import process_of_rank, shortest

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODEL = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "tests", "models", "llama.json")
VOCABULARY = 307


def processes(word):
    """Ids of running processes whose command line holds `word`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if word.encode() in f.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def listening_ports(pid):
    """TCP ports on which a process listens."""
    sockets = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass  # closed meanwhile
    ports = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}", encoding="ascii") as f:
            for row in list(f)[1:]:
                fields = row.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:  # TCP_LISTEN, inode
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def safetensors(path, tensors):
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 4
        for n in shape:
            size *= n
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(offset))


class Faults(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="vramfit-faults-")
        self.addCleanup(self.directory.cleanup)
        self.data = self.tokens("tokens.bin", [i % VOCABULARY for i in range(20000)])

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def tokens(self, name, ids):
        with open(self.path(name), "wb") as f:
            f.write(struct.pack(f"<{len(ids)}I", *ids))
        return self.path(name)

    def command(self, *flags, data=None, ranks=2):
        return [os.path.join(BIN, "vramfit"), "run", MODEL, "--gpus", f"{ranks}xcpu-1GiB", "--data", data or self.data, "--token-bytes", "4",
                "--seq-len", "32", "-o", self.path("run.json"), *flags]

    def refused(self, code, *words, flags=(), data=None, environment=None):
        done = subprocess.run(self.command("--steps", "2", *flags, data=data), capture_output=True, text=True, timeout=60,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, code, done.stderr)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("step ")]
        self.assertLessEqual(len(lines), 3, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_weights_that_are_not_there(self):
        self.refused(5, "nowhere.safetensors", flags=("--weights", self.path("nowhere.safetensors")))

    def test_weights_that_lack_a_tensor(self):
        safetensors(self.path("w.safetensors"), {"model.norm.weight": [64]})
        self.refused(5, "model.embed_tokens.weight", flags=("--weights", self.path("w.safetensors")))

    def test_weights_of_another_shape(self):
        safetensors(self.path("w.safetensors"), {"model.embed_tokens.weight": [VOCABULARY, 65], "model.norm.weight": [64]})
        self.refused(5, "w.safetensors", flags=("--weights", self.path("w.safetensors")))

    def test_pickles_are_refused_by_name(self):
        with open(self.path("weights.bin"), "wb") as f:
            f.write(b"\x80\x04.")
        self.refused(5, "safetensors", flags=("--weights", self.path("weights.bin")))

    def test_a_token_outside_the_vocabulary(self):
        ids = [1] * 5000
        ids[77] = VOCABULARY
        self.refused(5, str(VOCABULARY), "77", data=self.tokens("bad.bin", ids))

    def test_data_that_is_not_there_or_too_short(self):
        self.refused(2, "nowhere.bin", data=self.path("nowhere.bin"))
        self.refused(2, "short.bin", data=self.tokens("short.bin", [1, 2, 3]))

    def test_a_budget_too_small_for_the_weights(self):
        self.refused(6, "largest:", flags=("--budget", "200000"))

    def test_a_device_that_is_not_there(self):
        self.refused(1, "cuda", flags=("--device", "cuda"))

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = subprocess.run([os.path.join(BIN, "vramfit"), "plan", MODEL, "--gpus", "2xcpu-1GiB", "--seq-len", "32", "-o", self.path("plan.json")],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            rank0 = subprocess.run([os.path.join(BIN, "vramfit-train"), "--plan", self.path("plan.json"), "--data", self.data, "--token-bytes", "4"],
                                   capture_output=True, text=True, timeout=60,
                                   env={**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
        self.assertEqual(rank0.returncode, 1, rank0.stderr)
        self.assertIn(str(port), rank0.stderr)

    def ended(self, harm, *flags):
        """A run of four ranks, whose processes, in rank order, and own process `harm` is given. Returns its exit code, what it wrote, and the
        seconds from the harm to its end; nothing is left. A tenth of the time-out that ranks have by default is far more than a busy machine needs."""
        command = self.command("--steps", "1000000", *flags, ranks=4)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
            try:
                first = run.stderr.readline()
                self.assertIn("step 1", first)
                ranks = [process_of_rank(self.directory.name, rank) for rank in range(4)]
                self.assertNotIn(None, ranks)
                harm(ranks, run)
                started = time.monotonic()
                errors = run.stderr.read()
                run.wait(timeout=60)
                seconds = time.monotonic() - started
                self.assertLess(seconds, 60)
            finally:
                run.kill()
        self.assertEqual(processes(self.directory.name), [])
        return run.returncode, [line for line in errors.splitlines() if not line.startswith("step ")], seconds

    def test_a_rank_that_is_killed_ends_all_within_five_seconds(self):
        def kill_one():
            code, lines, seconds = self.ended(lambda ranks, _: os.kill(ranks[2], signal.SIGKILL))
            self.assertEqual(code, 128 + signal.SIGKILL, lines)
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], r"rank 2 on \S+ was ended by signal 9 \(KILL\)")
            return seconds
        self.assertLess(shortest(kill_one), 5)

    def test_a_signal_to_one_rank_ends_all_and_gives_128_and_its_number(self):
        code, lines, _ = self.ended(lambda ranks, _: os.kill(ranks[0], signal.SIGTERM))
        self.assertEqual(code, 128 + signal.SIGTERM, lines)
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"rank 0 on \S+ was ended by signal 15 \(TERM\)")

    def test_a_signal_to_the_program_ends_all_and_gives_128_and_its_number(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number):
                code, lines, _ = self.ended(lambda _, run, number=number: run.send_signal(number))
                self.assertEqual(code, 128 + number, lines)
                self.assertEqual(lines, [f"vramfit: ended by signal {int(number)}; all ranks were stopped"])

    def test_no_store_listens_where_other_users_of_the_machine_could_come(self):
        ports = []

        def look(ranks, run):
            ports.extend(listening_ports(rank) for rank in ranks)
            run.send_signal(signal.SIGTERM)

        self.ended(look)
        # Gloo's, as on every rank, and on rank 0 the failure watch's, which wants a secret.
        self.assertEqual([len(of_rank) for of_rank in ports], [len(ports[1]) + 1] + 3 * [len(ports[1])])

    def test_a_rank_that_stops_is_named_when_the_others_have_waited_long_enough(self):
        code, lines, _ = self.ended(lambda ranks, _: os.kill(ranks[1], signal.SIGSTOP), "--timeout", "8")
        self.assertEqual(code, 1, lines)
        self.assertEqual(len(lines), 1, lines)
        self.assertRegex(lines[0], r"rank 1 on \S+ does not respond")


if __name__ == "__main__":
    unittest.main()
