"""Compares the executor with PyTorch's own FSDP2 and DDP over Gloo: same weights, same rows, same job, several steps.

fp32: losses, logits, gradients and updates of every tensor within the limits of docs/testing.md. 16 bits: the error against fp32 is
at most 1.5 times PyTorch's own error in that precision. docs/parity.md says what is compared and shows the figures.
Arguments: `cover` (pairwise), `mistakes` (deliberate ones must be noticed), or `full PART/PARTS [SECONDS]` (the product that
docs/parity.md defines, in a fixed random order; a part of it, and no longer than that many seconds).
"""

import collections
import random
import sys
import tempfile
import time
from dataclasses import replace

import torch

import executor
import job_cover
import parity
import pytorch_ranks
import reference
import trained_jobs
from parity import BF16_FACTOR, Comparison, flat, relative, token_losses

HYPER = reference.Hyper(steps=4, warmup=1)
SEQUENCE = 24


class References:
    """PyTorch's runs, each trained once whoever asks for it, and kept until the last one has."""

    def __init__(self, wanted, places, directory):
        self.left = collections.Counter(wanted)
        order = list(self.left)
        self.traces, self.coming = {}, iter(order)
        self.ranks = pytorch_ranks.Ranks(order, HYPER, places, SEQUENCE, directory)

    def get(self, run):
        while run not in self.traces:
            self.traces[next(self.coming)] = self.ranks.take()
        self.left[run] -= 1
        return self.traces[run] if self.left[run] else self.traces.pop(run)


def compare_fp32(ours, theirs, start, config):
    c = Comparison()
    parity.compare_losses(c, ours.losses, theirs.losses)
    c.hold("logits", "step 1", relative(ours.logits, theirs.logits), parity.FIRST_STEP_TOLERANCE)
    parity.compare_gradients(c, ours.gradients, theirs.gradients, config)
    parity.compare_updates(c, ours.parameters, theirs.parameters, start, config)
    return c


class Pooled:
    """Errors of 16-bit runs against fp32, added up over jobs: a loss is one number, a small tensor few, whose error is luck."""

    def __init__(self):
        self.squares = collections.defaultdict(lambda: [0.0, 0.0])

    def add(self, precision, family, runs, exact):
        for i, run in enumerate(runs):
            self.squares[precision, "losses"][i] += sum(((a - b) / b) ** 2 for a, b in zip(run.losses, exact.losses, strict=True))
            for name, gradient in exact.gradients.items():
                error = float((run.gradients[name].double() - gradient.double()).square().sum() / gradient.double().square().sum().clamp_min(1e-300))
                self.squares[precision, f"gradient of {family}: {name}"][i] += error

    def factors(self):
        return {key: (ours / pytorchs) ** 0.5 for key, (ours, pytorchs) in self.squares.items() if pytorchs > 0}


def compare_16_bits(ours, theirs, exact, start, labels):
    """Error against `exact` over PyTorch's own, of all numbers of a kind together."""
    c, names = Comparison(), sorted(exact.gradients)
    if set(ours.gradients) != set(exact.gradients):
        c.failures.append(f"names differ: {sorted(set(ours.gradients) ^ set(exact.gradients))[:4]}")
        return c
    still = [name for name in start if name not in exact.gradients]
    if any(not torch.equal(ours.parameters[name], theirs.parameters[name]) for name in still):
        c.failures.append("a frozen parameter changed")
    updates = [flat({name: r.parameters[name] - start[name] for name in names}, names) for r in (ours, theirs, exact)]
    figures = {
        "logits": [r.logits for r in (ours, theirs, exact)],
        "token losses": [token_losses(r.logits, labels) for r in (ours, theirs, exact)],
        "gradients": [flat(r.gradients, names) for r in (ours, theirs, exact)],
        "updates": updates,
    }
    for what, (a, b, right) in figures.items():
        c.hold(f"{what}: error / PyTorch's", "all", relative(a, right) / relative(b, right), BF16_FACTOR)
    return c


class Bench:
    """Weights, rows, PyTorch's ranks and the executor, for one list of jobs."""

    def __init__(self, jobs, mistaken=()):
        self.directory = tempfile.TemporaryDirectory(prefix="vramfit-parity-")
        self.places = {family: executor.Workplace(family) for family in dict.fromkeys(job.family for job in jobs)}
        wanted = []
        for job in jobs:
            wanted += [run for run in self.runs_of(job) if run is not None]
        self.references = References([*wanted, *mistaken], self.places, self.directory.name)

    @staticmethod
    def runs_of(job):
        return pytorch_ranks.pytorch_run(job), None if job.precision == "fp32" else pytorch_ranks.exact_run(job)

    def ours(self, program, job):
        case = pytorch_ranks.case_of(pytorch_ranks.pytorch_run(job), SEQUENCE)
        return program.run(job, case, HYPER, self.places[job.family])

    def theirs(self, job):
        return [None if run is None else self.references.get(run) for run in self.runs_of(job)]

    def compare(self, job, ours, theirs, exact):
        start = self.places[job.family].state
        if exact is None:
            return compare_fp32(ours, theirs, start, executor.config_of(job.family))
        batches = self.references.ranks.batches[job.family, job.micro_batches](1)
        return compare_16_bits(ours, theirs, exact, start, batches[0][1])

    def close(self):
        self.references.ranks.close()


class Worst:
    """The worst figure of each kind, and where."""

    def __init__(self):
        self.rows = {}

    def add(self, job, c):
        for what, (value, name) in c.worst.items():
            key = "fp32" if job.precision == "fp32" else job.precision, what
            if value > self.rows.get(key, (0.0,))[0]:
                self.rows[key] = value, name, job.name

    def report(self):
        for (precision, what), (value, name, job) in sorted(self.rows.items()):
            print(f"worst {precision} {what}: {value:.3g} ({name}; {job})")


def run_jobs(jobs, deadline=None, brief=False):
    """Compares every job until the deadline; False when one of them is out of tolerance. `brief` prints only those."""
    ok, done, worst, pooled = True, 0, Worst(), Pooled()
    bench = Bench(jobs)
    with trained_jobs.Program() as program:
        for job in jobs:
            if deadline is not None and time.monotonic() > deadline:
                break
            ours, (theirs, exact) = bench.ours(program, job), bench.theirs(job)
            c = bench.compare(job, ours, theirs, exact)
            if exact is not None:
                pooled.add(job.precision, job.family, (ours, theirs), exact)
            worst.add(job, c)
            if c.failures or not brief:
                ok &= parity.report(job, c)
            done += 1
            if brief and done % 100 == 0:
                print(f"{done} of {len(jobs)} jobs", flush=True)
    bench.close()
    worst.report()
    for (precision, what), factor in sorted(pooled.factors().items()):
        good = factor <= BF16_FACTOR
        if what == "losses" or not good:
            print(f"{'ok  ' if good else 'FAIL'} {precision}, {what} over all jobs: error / PyTorch's {factor:.2f}")
        ok &= good
    print(f"{done} of {len(jobs)} jobs compared")
    return ok and done > 0


def cover():
    """All pairs of values in fp32, whose limits are far narrower, and what is left of all pairs: those of the other precisions with every value."""
    in_fp32 = {"precision": ["fp32"]}
    exact = job_cover.pairwise_cover(in_fp32)
    jobs, complete = exact + job_cover.pairwise_cover(given=exact), True
    for axes in (in_fp32, {}):
        have, pairs = job_cover.covered(jobs, axes)
        print(f"{have} of {pairs} valid pairs of values {axes or ''}", flush=True)
        complete &= have == pairs
    return run_jobs(jobs) and complete


def full(part, seconds=None):
    """Jobs that share PyTorch's run stay together."""
    index, parts = map(int, part.split("/"))
    groups = collections.defaultdict(list)
    for job in job_cover.full_product():
        groups[pytorch_ranks.pytorch_run(job)].append(job)
    order = list(groups.values())
    random.Random(13).shuffle(order)
    jobs = [job for group in order[index - 1 :: parts] for job in group]
    return run_jobs(jobs, None if seconds is None else time.monotonic() + float(seconds), brief=True)


def job_with(**values):
    plain = {axis: table[0] for axis, table in job_cover.AXES.items()}
    return job_cover.ParityJob(**{**plain, **values})


def mistakes():
    """Each mistake on PyTorch's side must be noticed, by a figure at least ten times its limit."""
    fp32 = job_with(ranks=4, sharding="hybrid-shard", reshard="default", accumulation="2", freezing="pattern")
    bf16 = replace(fp32, precision="bf16-mixed")
    made = [(job, mistake) for job in (fp32, bf16) for mistake in pytorch_ranks.MISTAKES]
    made += [(fp32, mistake) for mistake in pytorch_ranks.SMALL_MISTAKES]
    wrong = {(job, mistake): replace(pytorch_ranks.pytorch_run(job), mistake=mistake) for job, mistake in made}
    bench = Bench([fp32, bf16], mistaken=wrong.values())
    limits = {"loss": parity.LOSS_TOLERANCE, "gradient": parity.FIRST_STEP_TOLERANCE, "update": parity.UPDATE_TOLERANCE}
    with trained_jobs.Program() as program:
        ours = bench.ours(program, fp32)
        right, (bf16_right, exact) = bench.theirs(fp32)[0], bench.theirs(bf16)
    ok = parity.report(fp32, bench.compare(fp32, ours, right, None))
    for (job, mistake), run in wrong.items():
        trace = bench.references.get(run)
        # In 16 bits a figure is measured by PyTorch's error, so the mistaken run takes the place of ours.
        c = bench.compare(job, ours, trace, None) if job is fp32 else bench.compare(job, trace, bf16_right, exact)
        factor = max((c.worst[what][0] / limit for what, limit in limits.items() if what in c.worst), default=0)
        noticed = bool(c.failures) and (job is bf16 or factor >= 10)
        print(f"{'ok  ' if noticed else 'FAIL'} {job.precision}, {mistake}: {c.failures[0] if c.failures else 'not noticed'}"
              + (f"; at most {factor:.0f} times a limit" if job is fp32 else ""), flush=True)
        ok &= noticed
    bench.close()
    return ok


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if {"cover": cover, "mistakes": mistakes, "full": full}[sys.argv[1]](*sys.argv[2:]) else 1)
