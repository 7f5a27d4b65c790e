"""Runs the programs, plainly or on their own terminal, for the tests of what a run shows and leaves."""

import fcntl
import json
import os
import pty
import random
import struct
import subprocess
import sys
import tempfile
import termios

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
# Whoever runs the tests may have said something about terminals.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "TERM", "VRAMFIT_TERMINAL_COLUMNS")}


def schema_check():
    sys.path.insert(0, os.path.join(SOURCE, "tests", "cli"))
    import schemas_test  # pylint: disable=import-outside-toplevel
    return schemas_test


def lines_of(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


class Workplace:
    """Tokens and plans of a tiny model."""

    def __init__(self, steps=3):
        self.directory = tempfile.TemporaryDirectory(prefix="vramfit-observing-")
        self.steps, self.plans, self.data = steps, {}, self.path("tokens.bin")
        with open(MODEL, encoding="utf-8") as f:
            vocabulary = json.load(f)["vocab_size"]
        generator = random.Random(5)
        with open(self.data, "wb") as f:
            f.write(struct.pack("<20000I", *(generator.randrange(vocabulary) for _ in range(20000))))

    def path(self, *names):
        return os.path.join(self.directory.name, *names)

    def plan(self, gpus, job=()):
        key = (gpus, *job)
        if key not in self.plans:
            path = self.path(f"plan{len(self.plans)}.json")
            command = [os.path.join(BIN, "vramfit"), "plan", MODEL, "--gpus", gpus, "--seq-len", "16", "-o", path, *job]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode in (0, 3), done.stderr
            self.plans[key] = path
        return self.plans[key]

    def command(self, *flags, ranks=1, launcher=False, gpus=None, job=()):
        plan = self.plan(gpus or f"{ranks}xcpu-1GiB", job)
        alone = ranks == 1 and not launcher and not gpus
        program = [os.path.join(BIN, "vramfit-train"), "--plan", plan] if alone else [os.path.join(BIN, "vramfit"), "run", plan]
        data = [] if gpus else ["--data", self.data, "--token-bytes", "4", "--threads", "1"]
        return [*program, *data, "--steps", str(self.steps), "-o", self.path("run.json"), *flags]

    def run(self, *flags, environment=None, preexec=None, **options):
        return subprocess.run(self.command(*flags, **options), capture_output=True, text=True, timeout=120, check=False,
                              env={**ENVIRONMENT, **(environment or {})}, preexec_fn=preexec)

    def run_on_terminal(self, *flags, columns=160, environment=None, **options):
        """Exit code and everything that came out on a terminal of so many columns."""
        primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        child = subprocess.Popen(self.command(*flags, **options), stdin=secondary, stdout=subprocess.DEVNULL, stderr=secondary,
                                 env={"TERM": "xterm", **ENVIRONMENT, **(environment or {})})
        os.close(secondary)
        shown = b""
        try:
            while chunk := os.read(primary, 65536):
                shown += chunk
        except OSError:
            pass  # how a terminal without programs ends
        os.close(primary)
        return child.wait(timeout=120), shown.decode()
