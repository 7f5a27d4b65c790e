"""--gradient-mask against a few lines of Python: the masks are drawn here a second time, from their definition in docs/freezing.md.

Each mistake in the reference (another probability, no scaling, another step's masks, masks after the clip) must be noticed.
"""

import os
import sys

import numpy
import torch
from safetensors.torch import save_file

import reference
from executor import Case, Workplace
from parity import FIRST_STEP_TOLERANCE, HYPER, LOSS_TOLERANCE, UPDATE_TOLERANCE, compare, report

GOLDEN, STREAMS, MASK = 0x9E3779B97F4A7C15, 0x6D61736B, (1 << 64) - 1


def mix(x):
    """The finalizer of SplitMix64, on numbers or arrays."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key_of(seed, step, name):
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    stream = mix(mix(mix(seed ^ STREAMS)) ^ fnv)
    return mix((stream + (step + 1) * GOLDEN) & MASK)


def kept(seed, step, name, shape, keep):
    count = int(numpy.prod(shape))
    x = numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN) + numpy.uint64(key_of(seed, step, name))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
    return torch.from_numpy((x >> numpy.uint64(11)) < numpy.uint64(int(keep * 2**53))).reshape(shape)


def drawn(case, keep, scale=None, step_offset=0):
    scale = 1 / keep if scale is None else scale
    return lambda step, g: {n: t * kept(case.seed, step + step_offset, n, t.shape, keep) * scale for n, t in g.items()}


def from_file(masks):
    return lambda step, g: {n: t * masks[n] if n in masks else t for n, t in g.items()}


class Masked(Workplace):
    transform, after_clip = None, False

    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        return super().reference(case, hyper, mutation, attention, transform=self.transform, transform_after_clip=self.after_clip, **options)


def equal(place, case, transform):
    place.transform = transform
    c, ours, _ = compare(case, place, HYPER)
    return report(case, c), ours


def noticed(place, case, ours, name, transform, after_clip=False):
    place.transform, place.after_clip = transform, after_clip
    c, _, _ = compare(case, place, HYPER, ours=ours)
    place.after_clip = False
    limits = {"loss": LOSS_TOLERANCE, "gradient": FIRST_STEP_TOLERANCE, "update": UPDATE_TOLERANCE}
    factor = max(c.worst[w][0] / limit for w, limit in limits.items() if w in c.worst)
    ok = bool(c.failures) and factor >= 10
    print(f"{'ok  ' if ok else 'FAIL'} mutation {name}: {factor:.0f} times the tolerance", flush=True)
    return ok


def main():
    keep, ok = 0.3, True
    place = Masked("llama")
    flags = ("--gradient-mask", f"keep:{keep}")
    for case in (Case("llama", ranks=2, accumulation=2, extra=flags), Case("llama", ranks=2, sharding="no-shard", extra=flags)):
        good, ours = equal(place, case, drawn(case, keep))
        ok &= good
    for name, transform, after in [("another probability", drawn(case, 0.31), False), ("gradients not scaled", drawn(case, keep, scale=1), False),
                                   ("the masks of another step", drawn(case, keep, step_offset=1), False),
                                   ("masked after the clip", drawn(case, keep), True), ("no masks", None, False)]:
        ok &= noticed(place, case, ours, name, transform, after)
    place = Masked("qwen2")
    generator = torch.Generator().manual_seed(1)
    masks = {n: torch.rand(p.shape, generator=generator) < 0.4 for n, p in place.state.items() if "mlp" in n or "norm" in n}
    path = os.path.join(place.directory.name, "mask.safetensors")
    save_file({n: m.to(torch.uint8) if "up" in n else m for n, m in masks.items()}, path)
    case = Case("qwen2", ranks=2, extra=("--gradient-mask", f"file:{path}"))
    good, ours = equal(place, case, from_file(masks))
    ok &= good
    masks[next(iter(masks))][0] ^= True
    ok &= noticed(place, case, ours, "one row of one mask", from_file(masks))
    return ok


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if main() else 1)
