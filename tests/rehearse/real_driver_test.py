"""On a machine that has a driver and cards, a rehearsal loads no library of that driver and opens no card.

Libraries with the driver's names lie first on the search path, and an interposed open() watches the device files; both write what
happens to a log. The program tries all it can to reach them: through torch, by name, by path, and from a child process.
Without a rehearsal, the same program must fill the log; otherwise the test would see nothing.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

VRAMFIT = pathlib.Path(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
DRIVER = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"]

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void loaded(void) {
  FILE* log = fopen(getenv("TOUCHED"), "a");
  fprintf(log, "loaded " NAME "\n");
  fclose(log);
}
"""

WATCH = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void seen(const char* path) {
  if (strncmp(path, "/dev/nvidia", 11) != 0) return;
  FILE* log = fopen(getenv("TOUCHED"), "a");
  fprintf(log, "opened %s\n", path);
  fclose(log);
}
#define WATCHED(name)                                                                                    \
  int name(const char* path, int flags, ...) {                                                           \
    va_list more;                                                                                        \
    va_start(more, flags);                                                                               \
    unsigned int mode = va_arg(more, unsigned int);                                                      \
    va_end(more);                                                                                        \
    seen(path);                                                                                          \
    return ((int (*)(const char*, int, unsigned int))dlsym(RTLD_NEXT, #name))(path, flags, mode);        \
  }
WATCHED(open)
WATCHED(open64)
"""

# Without torch it is the control: what a program does that finds a driver.
PROGRAM = r"""
import ctypes, os, subprocess, sys
def reach(path):
    try:
        ctypes.CDLL(path)
    except OSError:
        pass
for name in os.environ["DRIVER"].split():
    reach(name)
    reach(os.path.join(os.environ["REAL"], name))
if "control" in sys.argv:
    ctypes.CDLL(None).open(b"/dev/nvidia-none", 0)
if "torch" in sys.argv:
    import torch
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    torch.cuda.synchronize()
    subprocess.run([sys.executable, sys.argv[0], "child"], check=True)
"""


def compile_library(source, output, *flags):
    text = output.with_suffix(output.suffix + ".c")
    text.write_text(source, encoding="utf-8")
    subprocess.run([shutil.which("gcc") or "cc", "-shared", "-fPIC", "-o", output, text, *flags, "-ldl"], check=True)


def touched(folder, command):
    """Lines of the log after `command`."""
    log = folder / "touched"
    log.write_text("", encoding="utf-8")
    environment = {**os.environ, "TOUCHED": str(log), "DRIVER": " ".join(DRIVER), "REAL": str(folder / "real"),
                   "LD_LIBRARY_PATH": str(folder / "real"), "LD_PRELOAD": str(folder / "watch.so")}
    done = subprocess.run([str(word) for word in command], env=environment, text=True, capture_output=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return log.read_text(encoding="utf-8").splitlines()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "real").mkdir()
        for library in DRIVER:
            compile_library(LIBRARY, folder / "real" / library, f'-DNAME="{library}"')
        compile_library(WATCH, folder / "watch.so")
        program = folder / "program.py"
        program.write_text(PROGRAM, encoding="utf-8")
        control = touched(folder, [sys.executable, program, "control"])
        missing = [what for what in ("loaded libcuda.so.1", "loaded libnvidia-ml.so.1", "opened /dev/nvidia-none")
                   if what not in control]
        if missing:
            sys.exit(f"without a rehearsal the program should have been seen: {missing} are not in {control}")
        found = touched(folder, [VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--", sys.executable, program, "torch"])
        if found:
            sys.exit("a rehearsal reached the driver: " + ", ".join(found))
        print(f"reached without a rehearsal: {len(control)}, with one: none")


if __name__ == "__main__":
    main()
