"""`vramfit merge` against PEFT's merge_and_unload(), for models in one file and in several, in fp32, bf16 and fp16.

fp32: the same sums in another order, so matrices within 1e-6 of PEFT's, and logits within 1e-5 of those of the model with adapters.
bf16, fp16: sums are made in fp32 and rounded once, so all but one element in a thousand are those of PEFT and also those of the exact sum (in
fp64) rounded once; none is off by more than one rounding step. All else is copied to the byte."""

import json
import os
import subprocess
import tempfile

import peft
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import executor
import reference
from parts import run_part

VRAMFIT = os.path.join(executor.BIN, "vramfit")
MATRIX_LIMIT, LOGITS_LIMIT, UNEQUAL = 1e-6, 1e-5, 1e-3


def check(what, holds, details=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what} {details}", flush=True)
    return holds


def merge(*arguments):
    return subprocess.run([VRAMFIT, "merge", *arguments], capture_output=True, text=True, timeout=120)


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def adapted(model, **config):
    model = peft.get_peft_model(model, peft.LoraConfig(**({"r": 4, "lora_alpha": 6, "target_modules": "all-linear"} | config)))
    generator = torch.Generator().manual_seed(5)
    for name, p in model.named_parameters():
        if ".lora_magnitude" in name:
            p.data *= 1 + 0.2 * torch.randn(p.shape, generator=generator)
        elif ".lora_" in name:
            p.data = 0.2 * torch.randn(p.shape, generator=generator)
    return model.eval()


def tensors_in(folder):
    tensors = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            tensors |= load_file(os.path.join(folder, name))
    return tensors


def headers_in(folder):
    """The header of each file, to the byte."""
    headers = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                length = int.from_bytes(f.read(8), "little")
                headers[name] = f.read(length)
    return headers


def exact_sums(base, folder, config):
    """W + s B A in fp64 by the names of the base's tensors; with DoRA, its rows as long as the magnitudes say."""
    scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    sums = {}
    with safe_open(os.path.join(folder, "adapter_model.safetensors"), "pt") as f:
        for key in f.keys():
            if not key.endswith("lora_A.weight"):
                continue
            product = scale * f.get_tensor(key.replace("lora_A", "lora_B")).double() @ f.get_tensor(key).double()
            name = key.removeprefix("base_model.model.").replace("lora_A.", "")
            outputs_first = (lambda t: t.T) if config["fan_in_fan_out"] else (lambda t: t)
            total = outputs_first(base[name].double()) + product
            if config["use_dora"]:
                total *= (f.get_tensor(key.replace("lora_A.weight", "lora_magnitude_vector")).double() / total.norm(dim=1))[:, None]
            sums[name] = outputs_first(total)
    return sums


def merged_as_peft_does(family, base, adapters, merged, theirs, config, dtype):
    ok, worst, unequal, elements = True, 0.0, [0, 0], 0
    sums = exact_sums(base, adapters, config)
    for name, tensor in base.items():
        if name not in sums:
            ok &= torch.equal(merged[name], tensor)
            continue
        if dtype == torch.float32:
            worst = max(worst, relative(merged[name], theirs[name]))
            ok &= relative(merged[name], tensor) > 1e-3  # the adapter is there
            continue
        once = sums[name].to(dtype)
        elements += once.numel()
        step = (torch.nextafter(once.abs(), torch.tensor(float("inf"), dtype=dtype)) - once.abs()).double()
        for i, other in enumerate((once, theirs[name])):
            unequal[i] += int((other != merged[name]).sum())
            ok &= bool(((merged[name].double() - other.double()).abs() <= step).all())
    if dtype == torch.float32:
        return check(f"{family} fp32: matrices", ok and worst <= MATRIX_LIMIT, f"differ from PEFT's by {worst:.1e}")
    ok &= max(unequal) <= UNEQUAL * elements
    return check(f"{family} {dtype}: matrices", ok, f"of {elements}, {unequal[0]} aren't the exact sum rounded, {unequal[1]} aren't PEFT's")


def one_model(family, dtype, shard_size, directory, **config):
    place = executor.Workplace(family)
    folder, adapters, out = (os.path.join(directory, name) for name in ("base", "adapters", "merged"))
    model = reference.build(executor.model_path(family), place.state, dtype=dtype).eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    model = adapted(model, **config)
    model.save_pretrained(adapters)
    done = merge(folder, adapters, "-o", out)
    if not check(f"{family} {dtype}: merged", done.returncode == 0, (done.stdout + done.stderr).strip()):
        return False
    ok = check("names, order, dtypes", headers_in(out) == headers_in(folder), f"{len(headers_in(out))} files")
    ok &= check("nothing else is missing", set(os.listdir(folder)) == set(os.listdir(out)))
    ids, _ = executor.rows_of(executor.Case(family), place.data, 4)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    base, merged = tensors_in(folder), tensors_in(out)
    theirs = dict(model.merge_and_unload().named_parameters())
    with open(os.path.join(adapters, "adapter_config.json"), encoding="utf-8") as f:
        ok &= merged_as_peft_does(family, base, adapters, merged, theirs, json.load(f), dtype)
    loaded = reference.model_class(executor.config_of(family)).from_pretrained(out, dtype=dtype).eval()
    with torch.no_grad():
        error = relative(loaded(input_ids=ids).logits, logits)
    return ok & check(f"{family} {dtype}: logits", error <= (LOGITS_LIMIT if dtype == torch.float32 else 0.05), f"differ by {error:.1e}")


def refusals(directory):
    """What is there already is never touched, and nothing is left of a merge that failed."""
    folder, adapters, out = (os.path.join(directory, name) for name in ("base", "adapters", "new"))
    ok = True
    os.makedirs(out)
    done = merge(folder, adapters, "-o", out)
    ok &= check("a folder that is there", done.returncode == 2 and "is there already" in done.stderr and os.listdir(out) == [], done.stderr.strip())
    os.rename(out, out + ".part")
    done = merge(folder, adapters, "-o", out + "/")
    ok &= check("an interrupted merge's", done.returncode == 2 and ".part" in done.stderr and os.path.isdir(out + ".part"), done.stderr.strip())
    os.rmdir(out + ".part")
    others = os.path.join(directory, "others")
    adapted(reference.build(executor.model_path("gpt2"))).save_pretrained(others)
    done = merge(folder, others, "-o", out)
    ok &= check("another model's adapters", done.returncode == 5 and "another model's" in done.stderr, done.stderr.strip())
    huge = os.path.join(directory, "huge")
    model = adapted(reference.build(executor.model_path("llama")))
    for name, p in model.named_parameters():
        if ".lora_" in name:
            p.data.fill_(1e30)
    model.save_pretrained(huge)
    done = merge(folder, huge, "-o", out)
    ok &= check("sums that overflow", done.returncode == 5 and "not finite" in done.stderr, done.stderr.strip())
    cut = os.path.join(folder, sorted(n for n in os.listdir(folder) if n.endswith(".safetensors"))[-1])
    with open(cut, "r+b") as f:
        f.truncate(os.path.getsize(cut) - 1)
    done = merge(folder, adapters, "-o", out)
    ok &= check("a file that is too short", done.returncode == 5, done.stderr.strip())
    return ok & check("nothing is left", not os.path.exists(out) and not os.path.exists(out + ".part"))


def main():
    ok = True
    cases = [("llama", torch.float32, "60KB", {"use_rslora": True}), ("gpt2", torch.float32, "1GB", {"use_dora": True}), ("phi3", torch.float32, "1GB", {"use_dora": True}),
             ("gpt2", torch.bfloat16, "60KB", {}), ("phi3", torch.float16, "1GB", {}), ("llama", torch.bfloat16, "60KB", {"target_modules": ["q_proj", "down_proj"]})]
    for family, dtype, size, config in cases:
        with tempfile.TemporaryDirectory(prefix="vramfit-merge-") as directory:
            ok &= one_model(family, dtype, size, directory, **config)
            if family == "llama" and dtype == torch.float32:
                ok &= refusals(directory)
    return ok


if __name__ == "__main__":
    run_part(main)
