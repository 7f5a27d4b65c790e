"""What a report says of a program that came to a bad end: the figures that it had at that moment, counted here by hand, and nothing
is left running or on disk.

Usage: endings_test.py MOMENTS [torch]    (how many times the program is killed in the middle; `torch`: what PyTorch's allocator had at that moment)
"""
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
sys.path.insert(0, FOLDER)
import torch_endings  # pylint: disable=wrong-import-position
from endings import MIB, STEPS, plan  # pylint: disable=wrong-import-position

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
PAGE = 2 * MIB
MARK = f"VRAMFIT_TEST_MARK=endings-{os.getpid()}"


def states(context, communicator):
    """(bytes at the peak, of them outside of blocks, uncertain reads) after 0, 1, ... steps."""
    blocks, outside, peak, at_peak, reads = [], 0, 0, 0, 0
    found = [(0, 0, 0)]
    for step in range(STEPS):
        what, how_much = plan(step)
        outside = outside or context
        if what == "take":
            blocks.append(-(-how_much // PAGE) * PAGE)
        elif what == "give":
            blocks.pop(how_much)
        elif what == "join":
            outside += communicator
        else:
            reads += 1
        if outside + sum(blocks) > peak:
            peak, at_peak = outside + sum(blocks), outside
        found.append((peak, at_peak, reads))
    return found


def figures(report):
    if not report["ranks"]:
        return 0, 0, report["values"]["uncertain_reads"]
    (rank,) = report["ranks"]
    return rank["total_bytes"], rank["breakdown"]["outside_allocator"], report["values"]["uncertain_reads"]


def marked_processes():
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if MARK.encode() in file.read().split(b"\0"):
                    found.append(process)
        except OSError:
            pass  # it ended meanwhile, or is somebody else's
    return found


class Rehearsal:
    """One in the background, whose program logs its steps."""

    def __init__(self, how, *flags, script="endings.py"):
        self.holder = tempfile.TemporaryDirectory()
        self.log, self.report = (os.path.join(self.holder.name, name) for name in ("log", "report.json"))
        self.left = os.path.join(self.holder.name, "tmp")
        os.mkdir(self.left)
        command = [VRAMFIT, "rehearse", "--gpus", "H100-80GB", "-o", self.report, *flags, "--", "env", MARK, sys.executable,
                   os.path.join(FOLDER, script), self.log, how]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": self.left})

    def lines(self):
        try:
            with open(self.log, encoding="ascii") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def wait_for(self, steps):
        until = time.monotonic() + 60
        while len(self.lines()) < 1 + steps:
            assert time.monotonic() < until and self.process.poll() is None, (steps, len(self.lines()))
            time.sleep(0.0005)

    def end(self):
        """(exit code, the report, the steps that were logged)"""
        self.process.communicate(timeout=200)
        assert os.listdir(self.left) == [], os.listdir(self.left)
        assert marked_processes() == [], marked_processes()
        with open(self.report, encoding="utf-8") as file:
            report = json.load(file)
        steps = len(self.lines()) - 1
        self.holder.cleanup()
        return self.process.returncode, report, steps


def check(name, ended, expected_code, verdict, by_steps):
    code, report, steps = ended
    assert (code, report["verdict"]) == (expected_code, verdict), (name, code, report["verdict"], report["why"])
    # A step is logged after it is done, so the one that follows may have been done as well.
    possible = by_steps[steps:steps + 2]
    assert figures(report) in possible, (name, steps, figures(report), possible)
    assert report["values"]["certain"] == (figures(report)[2] == 0), (name, report["values"])


def killed(moment, by_steps):
    rehearsal = Rehearsal("wait")
    rehearsal.wait_for(moment)
    os.kill(int(rehearsal.lines()[0]), signal.SIGKILL)
    check(f"killed after step {moment}", rehearsal.end(), 137, "failed", by_steps)


def stopped(by_steps):
    """A program that hangs, until the time-out and until a signal to vramfit."""
    check("hangs", Rehearsal("wait", "--timeout", "4").end(), 1, "timed_out", by_steps)
    rehearsal = Rehearsal("wait")
    rehearsal.wait_for(STEPS // 2)
    rehearsal.process.send_signal(signal.SIGINT)
    check("interrupted", rehearsal.end(), 130, "interrupted", by_steps)


def torch_states():
    """Bytes of tensors at the peak after 0, 1, ... steps. All are whole pages, so what is requested is what is allocated."""
    tensors, peak, found = [], 0, [0]
    for step in range(torch_endings.STEPS):
        what, how_much = torch_endings.plan(step)
        if what == "take":
            tensors.append(how_much)
        else:
            tensors.pop(how_much)
        peak = max(peak, sum(tensors))
        found.append(peak)
    return found


def torch_killed(moments):
    """No phase has come to its end, and yet the peaks are those of the moment."""
    by_steps, draw = torch_states(), random.Random(11)
    for moment in [None, *(draw.randrange(1, STEPS) for _ in range(moments))]:
        rehearsal = Rehearsal("exit" if moment is None else "wait", script="torch_endings.py")
        if moment is not None:
            rehearsal.wait_for(moment)
            os.kill(int(rehearsal.lines()[0]), signal.SIGKILL)
        code, report, steps = rehearsal.end()
        (rank,) = report["ranks"]
        assert (code, rank["source"]) == (0 if moment is None else 137, "torch"), (moment, code, rank, report["notes"])
        possible = by_steps[-1:] if moment is None else by_steps[steps:steps + 2]
        for name in ("peak_requested_bytes", "peak_allocated_bytes"):
            assert rank[name] in possible, (moment, steps, name, rank[name], possible)
    print(f"killed {moments} times; an undisturbed run has {by_steps[-1]}")


def main():
    if sys.argv[2:] == ["torch"]:
        return torch_killed(int(sys.argv[1]))
    _, undisturbed, steps = Rehearsal("exit").end()
    context = undisturbed["cluster"]["card"]["context_bytes"]
    by_steps = states(context, undisturbed["cluster"]["card"]["nccl_bytes"])
    assert steps == STEPS and figures(undisturbed) == by_steps[-1], (steps, figures(undisturbed), by_steps[-1])
    for how, code, verdict in (("_exit", 3, "failed"), ("C's _exit", 3, "failed"), ("abort", 128 + signal.SIGABRT, "failed")):
        check(how, Rehearsal(how).end(), code, verdict, by_steps)
    peak, outside, reads = by_steps[-1]
    _, forked, _ = Rehearsal("fork").end()
    assert len(forked["ranks"]) == 1 and figures(forked)[0] > peak and figures(forked)[2] == reads, (figures(forked), peak, outside)
    stopped(by_steps)
    draw = random.Random(7)
    for _ in range(int(sys.argv[1])):
        killed(draw.randrange(1, STEPS), by_steps)
    print(f"killed {sys.argv[1]} times; an undisturbed run has {by_steps[-1]}")


if __name__ == "__main__":
    main()
