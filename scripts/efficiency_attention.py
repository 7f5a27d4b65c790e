"""Fits what fused attention reaches: FLOPs / (peak share s / (s + s0)) for a sequence of s positions, with a share for heads of 64 and of 128."""
import math
import statistics

from efficiency_data import family, peak, rows, used_and_held_out

HALF_LENGTHS = [10 * i for i in range(1, 201)]
WAYS = (("fwd", ""), ("bwd", "_backward"))
KINDS_OF_ATTENTION = [kernel + suffix for kernel in ("attention", "cudnn_attention") for _, suffix in WAYS]


def rate(row, values):
    share, half = values
    return peak(row["card"], "bf16_tflops") * share * row["length"] / (row["length"] + half)


def measured(row):
    return row["tflops"]


def median_share(found, half):
    return statistics.median(row["tflops"] / rate(row, (1, half)) for row in found)


def log_error(found, share, half):
    return sum(abs(math.log(rate(row, (share, half)) / row["tflops"])) for row in found)


def best_half_length(by_head):
    """With which each head size's own share leaves the least sum of logarithmic errors."""
    return min(HALF_LENGTHS, key=lambda half: sum(log_error(found, median_share(found, half), half) for found in by_head))


def of_head(found, size):
    return [row for row in found if row["head_size"] == size]


def fit_flash(files):
    flash = rows("attention", kernel=("FlashAttention-2",))
    flash = [row for row in flash if row["card"] != "H20-96GB"]  # an eighth of an H100's FLOPs: bound by other things
    for name in ("capability-8", "capability-9", "capability-10"):
        for way, suffix in WAYS:
            key = "attention" + suffix
            mine = [row for row in flash if family(row["card"]) == name and row["pass"] == way]
            large = of_head(mine, 128)
            used, held_out = used_and_held_out(of_head(mine, 64))
            half = best_half_length([used])
            values = (median_share(used, half), half)
            files[name].put_fit([f"{key}_share_64", f"{key}_half_length"], values, used, held_out, rate, measured)
            if large:
                files[name].put_fit([f"{key}_share_128"], [median_share(large, half)], large, [], rate, measured)
            else:
                files[name].put(f"{key}_share_128", values[0], "assumed as at head size 64")
    for name in ("capability-12", "gpu"):
        for key, figure in files["capability-8"].figures.items():
            if key.startswith("attention"):
                files[name].figures[key] = [figure[0], "assumed as on compute capability 8.x"
                                            + (", whose instructions its kernel uses" if name != "gpu" else "")]


# cuDNN's, of causal masks alone, as training of language models has them: under them short sequences are slower.

def fit_cudnn(files):
    found = [row for row in rows("attention", kernel=("cuDNN",)) if row["causal"]]
    for way, suffix in WAYS:
        key = "cudnn_attention" + suffix
        for name in ("capability-9", "capability-10"):
            mine = [row for row in found if family(row["card"]) == name and row["pass"] == way and row["card"] != "H20-96GB"]
            fit_cudnn_of(files[name], key, mine)
        for figure in ("share_64", "share_128", "half_length"):
            nines = files["capability-9"].figures[f"{key}_{figure}"][0]
            if f"{key}_{figure}" not in files["capability-10"].figures:
                large = files["capability-9"].figures[f"{key}_share_128"][0]
                tens = files["capability-10"].figures[f"{key}_share_128"][0]
                files["capability-10"].put(f"{key}_{figure}", tens * nines / large,
                                           "assumed: that of 128 by what heads of 64 reach of it on compute capability 9.0")
            files["gpu"].put(f"{key}_{figure}", nines, "assumed as on compute capability 9.0; PyTorch prefers it on 9.0 and 10.x alone")
    fit_cudnn_of_h20(files, [row for row in found if row["card"] == "H20-96GB"])


def fit_cudnn_of(file, key, found):
    """Every second length of each source is held out."""
    found = sorted(found, key=lambda row: (row["card"], row["source"], row["length"]))
    parts = {size: used_and_held_out(of_head(found, size)) for size in (64, 128)}
    by_head = [used for used, _ in parts.values() if used]
    half = best_half_length(by_head)
    for size, (used, held_out) in parts.items():
        if not used:
            continue
        keys = [f"{key}_share_{size}", f"{key}_half_length"]
        file.put_fit(keys, (median_share(used, half), half), used, held_out, rate, measured)
    every = [row for used in by_head for row in used]
    file.put_origin(f"{key}_half_length", half, every)


def fit_cudnn_of_h20(files, found):
    """One length, forward: an eighth of an H100's FLOPs, of which kernels reach a larger share."""
    nines, h20 = files["capability-9"].figures, files["H20-96GB"]
    for size in (64, 128):
        used = of_head(found, size)
        key = f"cudnn_attention_share_{size}"
        share = median_share(used, nines["cudnn_attention_half_length"][0])
        h20.put_fit([key], [share], used, [], rate, measured)
        backward = f"cudnn_attention_backward_share_{size}"
        h20.put(backward, share * nines[backward][0] / nines[key][0],
                "assumed: forward's by what backward reaches of it on compute capability 9.0")


def fit_attention(files):
    fit_flash(files)
    fit_cudnn(files)
