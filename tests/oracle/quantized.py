"""Quantized matrices against bitsandbytes, those in FP8 against torchao: codes, scales, and what they are made whole to.

    quantized.py equal      shapes, dtypes and ranks; each mistake in the reference must be noticed

The mean of scales is one number for a matrix: here a sum in double, rounded once, there torch's mean in fp32, so they may differ in
the last bits. All that follows from it is compared with bitsandbytes' own functions, called with the mean as it is here.

bitsandbytes has several functions that find the nearest of 256 numbers. Codes of scales are equal to those of the plain one, which it
takes for numbers that are neither fp32, bf16 nor fp16; its fast one for CPUs misses the nearest now and then and takes its neighbour.
"""

import logging
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import numpy
import torch

from executor import BIN

logging.disable(logging.WARNING)
import bitsandbytes.functional as bnb  # noqa: E402
from torchao.quantization import Float8Tensor, PerRow, PerTensor  # noqa: E402

BLOCK, SCALE_BLOCK = 64, 256
MEAN_TOLERANCE = 4 * 2.0**-24   # of torch's mean of scales
MAP_TOLERANCE = 2.0**-22        # bitsandbytes makes its map by linspace in fp32, whose last bit depends on the CPU


@dataclass(frozen=True)
class Stored:
    """One rank's."""
    codes: numpy.ndarray
    scales: numpy.ndarray
    scale_scales: numpy.ndarray = None
    mean: float = None
    whole: numpy.ndarray = None


def ours(form, weights, ranks=1, dtype="fp32", device="cpu"):
    rows, columns = weights.shape
    capacity = -(-rows // ranks)
    with tempfile.TemporaryDirectory(prefix="vramfit-quantized-") as directory:
        given, made = os.path.join(directory, "in"), os.path.join(directory, "out")
        weights.numpy().tofile(given)
        subprocess.run([os.path.join(BIN, "quantize_flat"), form, dtype, device, str(rows), str(columns), str(ranks), given, made], check=True)
        data = numpy.fromfile(made, dtype=numpy.uint8)
    size, data = int(data[:8].view(numpy.int64)[0]), data[8:]
    result = []
    for rank in range(ranks):
        own = min(max(rows - rank * capacity, 0), capacity)
        stored, whole = data[:size], data[size : size + 4 * own * columns].view(numpy.float32)
        data = data[size + 4 * own * columns :]
        result.append(parts(form, stored, capacity, own, columns, whole))
    assert not len(data)
    return result


def parts(form, stored, capacity, own, columns, whole):
    def numbers(begin, count):
        return stored[begin : begin + 4 * count].view(numpy.float32)

    if form in ("int8", "fp8"):
        kind = numpy.int8 if form == "int8" else numpy.uint8
        return Stored(stored[4 * capacity :][: own * columns].view(kind), numbers(0, own), whole=whole)
    room, blocks = -(-capacity * columns // BLOCK), -(-own * columns // BLOCK)
    codes = -(-own * columns // 2)
    if form == "nf4":
        return Stored(stored[4 * room :][:codes], numbers(0, blocks), whole=whole)
    groups = -(-room // SCALE_BLOCK)
    begin = 4 * groups + 4
    return Stored(stored[begin + room :][:codes], stored[begin : begin + blocks], numbers(0, -(-blocks // SCALE_BLOCK)), float(numbers(4 * groups, 1)[0]), whole)


def theirs(form, rows, mean=None, dtype=torch.float32, block=BLOCK):
    """Of one rank's rows, with the mean that all ranks' scales have."""
    if form == "int8":
        codes, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(rows.clone(), 0.0)
        whole = bnb.int8_vectorwise_dequant(codes, scales).to(dtype)
        return Stored(codes.numpy().reshape(-1), scales.numpy(), whole=whole.float().numpy().reshape(-1))
    if form == "fp8":
        made = Float8Tensor.from_hp(rows, granularity=PerRow() if block else PerTensor())
        return Stored(made.qdata.view(torch.uint8).numpy().reshape(-1), made.scale.numpy().reshape(-1), whole=made.dequantize(dtype).float().numpy().reshape(-1))
    codes, state = bnb.quantize_4bit(rows, blocksize=block, quant_type="nf4")
    first = Stored(codes.numpy().reshape(-1), state.absmax.numpy())
    scales, second = state.absmax, None
    if form == "nf4-double":
        table = bnb.create_dynamic_map()
        eight, of_eight = torch.ops.bitsandbytes.quantize_blockwise.default((state.absmax - mean).double(), table, SCALE_BLOCK)
        second = bnb.QuantState(absmax=of_eight, code=table, blocksize=SCALE_BLOCK, dtype=torch.float32)
        scales = bnb.dequantize_blockwise(eight, second) + mean
        first = Stored(first.codes, eight.numpy(), second.absmax.numpy(), float(mean))
    whole = torch.ops.bitsandbytes.dequantize_4bit(codes, scales, block, "nf4", rows.shape, dtype)
    return Stored(first.codes, first.scales, first.scale_scales, first.mean, whole.float().numpy().reshape(-1))


def same(a, b, dtype="fp32"):
    """What of a rank isn't equal; values to the map's last bit, or to the dtype's where they are rounded once more."""
    wrong = [name for name in ("codes", "scales") if not numpy.array_equal(getattr(a, name), getattr(b, name))]
    if a.scale_scales is not None and not numpy.array_equal(a.scale_scales, b.scale_scales):
        wrong.append("scales of scales")
    is_double = a.scale_scales is not None
    last_bit = {"fp32": 0, "bf16": 2.0**-7, "fp16": 2.0**-10}[dtype] if is_double else 0
    if not numpy.allclose(a.whole, b.whole, rtol=last_bit, atol=MAP_TOLERANCE * numpy.abs(b.whole).max() if is_double else 0):
        wrong.append("values")
    return wrong


def mean_of(weights, ranks):
    capacity = -(-weights.shape[0] // ranks)
    scales = [bnb.quantize_4bit(part, blocksize=BLOCK, quant_type="nf4")[1].absmax for part in weights.split(capacity)]
    return torch.cat(scales).mean()


def case(form, weights, ranks, dtype="fp32", device="cpu"):
    made = ours(form, weights, ranks, dtype, device)
    capacity = -(-weights.shape[0] // ranks)
    wrong = []
    if form == "nf4-double":
        mean = mean_of(weights, ranks).item()
        if any(abs(rank.mean - mean) > MEAN_TOLERANCE * mean for rank in made):
            wrong.append("mean")
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    for rank, own in zip(made, weights.split(capacity)):
        mean = None if rank.mean is None else torch.tensor(rank.mean)
        wrong += same(rank, theirs(form, own, mean, types[dtype]), dtype)
    print(f"{'FAIL' if wrong else 'ok  '} {form} {tuple(weights.shape)} on {ranks} for {dtype}, {device}: {', '.join(sorted(set(wrong))) or 'equal'}", flush=True)
    return not wrong


def draw(rows, columns, seed=1):
    """Blocks of different sizes, single large weights, and rows of zeros."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, columns, generator=generator) * 0.02
    weights *= torch.exp(0.5 * torch.randn(rows, 1, generator=generator))
    weights[torch.rand(rows, columns, generator=generator) < 1e-4] *= 20
    return weights


def equal():
    ok = True
    for form in ("nf4", "nf4-double", "int8", "fp8"):
        for rows, columns, ranks in ((512, 512, 1), (512, 512, 2), (130, 64, 1), (7, 10, 1), (100, 24, 3), (1024, 4096, 4)):
            ok &= case(form, draw(rows, columns), ranks)
        for dtype in ("bf16", "fp16"):
            ok &= case(form, draw(256, 256), 1, dtype)
        ok &= case(form, draw(1030, 2050), 2, device="cuda")
        ok &= case(form, draw(256, 256), 1, "bf16", "cuda")
    rows = torch.cat([draw(256, 512), torch.zeros(64, 512)])
    ok &= case("nf4-double", rows, 1) and case("nf4", rows, 1)
    return ok & shares() & fast() & mistakes()


def fast():
    """bitsandbytes' fast function for CPUs: of its codes of scales, few differ, and by one place."""
    weights = draw(1024, 1024)
    own = ours("nf4-double", weights)[0]
    scales = bnb.quantize_4bit(weights, blocksize=BLOCK, quant_type="nf4")[1].absmax
    codes, _ = bnb.quantize_blockwise(scales - own.mean, blocksize=SCALE_BLOCK)
    off = numpy.abs(codes.numpy().astype(int) - own.scales.astype(int))
    ok = off.max() <= 1 and off.mean() < 0.01
    print(f"{'ok  ' if ok else 'FAIL'} {off.sum()} of {off.size} codes of scales are neighbours of those of the fast function", flush=True)
    return ok


def shares():
    """With whole blocks on each rank, what is stored doesn't depend on how many there are."""
    one, four = (ours("nf4-double", draw(256, 512), ranks) for ranks in (1, 4))
    joined = [numpy.concatenate([getattr(rank, name) for rank in four]) for name in ("codes", "scales", "scale_scales", "whole")]
    alone = [getattr(one[0], name) for name in ("codes", "scales", "scale_scales", "whole")]
    ok = all(numpy.array_equal(a, b) for a, b in zip(joined, alone)) and {rank.mean for rank in four} == {one[0].mean}
    print(f"{'ok  ' if ok else 'FAIL'} nf4-double on 4 ranks as on one", flush=True)
    return ok


def mistakes():
    weights = draw(256, 512)
    single, double = ours("nf4", weights)[0], ours("nf4-double", weights)[0]
    mean = torch.tensor(double.mean)
    noticed = {
        "blocks of 128": bool(same(single, theirs("nf4", weights, block=128))),
        "no double quantization": not numpy.allclose(double.whole, theirs("nf4", weights).whole, rtol=1e-3, atol=0),
        "scales with their mean": bool(same(double, theirs("nf4-double", weights, torch.zeros(())))),
        "another mean": bool(same(double, theirs("nf4-double", weights, mean * 1.01))),
        "one scale for a matrix in FP8": bool(same(ours("fp8", weights)[0], theirs("fp8", weights, block=None))),
        "columns for rows": bool(same(ours("int8", weights)[0], theirs("int8", weights.T.contiguous()))),
    }
    for name, was in noticed.items():
        print(f"{'ok  ' if was else 'FAIL'} mistake noticed: {name}", flush=True)
    return all(noticed.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(0 if {"equal": equal}[sys.argv[1]]() else 1)
