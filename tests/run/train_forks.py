"""Programs whose vramfit-train is a fork of one process that has LibTorch loaded (train_forks.cpp): its start takes longer than tiny models train."""

import atexit
import os
import shutil
import subprocess
import tempfile

BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")


class Programs:
    """`folder` has vramfit and vramfit-train until the process ends or close(). With `phantoms`, for runs on phantom GPUs: forks of a process under the stand-ins."""

    def __init__(self, phantoms=False):
        self.holder = tempfile.TemporaryDirectory(prefix="vramfit-forks-")
        self.folder = self.holder.name
        try:
            os.link(os.path.realpath(os.path.join(BIN, "vramfit")), os.path.join(self.folder, "vramfit"))  # it looks for vramfit-train beside itself
        except OSError:
            shutil.copy(os.path.join(BIN, "vramfit"), self.folder)
        os.symlink(os.path.abspath(os.path.join(BIN, "train_client")), os.path.join(self.folder, "vramfit-train"))
        path = os.path.join(self.folder, "socket")
        command = [os.path.join(BIN, "train_forks"), path]
        if phantoms:
            os.environ["VRAMFIT_PHANTOM_LIB"] = os.path.join(os.path.dirname(os.path.realpath(BIN)), "lib", "phantom")  # which isn't beside the link
            command = [os.path.join(BIN, "vramfit"), "rehearse", "--gpus", "1xH100-80GB", "--", *command]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.server.stdout.readline() != "ready\n":
            raise RuntimeError(f"train_forks ended with {self.server.wait()}")
        os.environ["VRAMFIT_TRAIN_FORKS"] = path
        atexit.register(self.close)

    def close(self):
        atexit.unregister(self.close)
        self.server.stdin.close()
        self.server.wait(timeout=600)
        self.server.stdout.close()
        self.holder.cleanup()
