"""--method qlora against PEFT over bitsandbytes' Linear4bit: the same base, quantized by each, the same adapters and rows.

On ranks whose shares aren't whole blocks of 256 scales, the reference's scales are those of each share, made by bitsandbytes' functions.
bitsandbytes' fast function for CPUs makes other numbers where a block goes from one row to the next (down_proj has 96 columns): its plain
one, which it takes for odd columns, is used instead.
Each mistake in the reference (other blocks, scales that aren't quantized, a base that isn't) must be noticed. Arguments: `cases` or `mistakes`.
"""

import os

os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
import torch

import lora
import reference
from executor import Case, batches
from parts import run_part
from quantized import BLOCK, SCALE_BLOCK, bnb, theirs

import bitsandbytes
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

FLAGS = ("--method", "qlora", *lora.FLAGS[2:])


OVERRIDES = torch.library.Library("bitsandbytes", "IMPL")


def plain_dequantize(codes, scales, block, kind, shape, dtype):
    return _dequantize_4bit_compute(codes.reshape(-1), scales, bnb.get_4bit_type(kind, device="cpu"), block, shape, dtype)


OVERRIDES.impl("dequantize_4bit", plain_dequantize, "CPU", allow_override=True)


def scales_of(form, weight, ranks, block):
    """Of the matrix's blocks in fp32, as they are once they have been stored."""
    shares = [part for part in weight.split(-(-weight.shape[0] // ranks)) if part.numel()]
    scales = [bnb.quantize_4bit(share, blocksize=block, quant_type="nf4")[1].absmax for share in shares]
    if form == "nf4":
        return torch.cat(scales)
    mean = torch.cat(scales).double().mean().float()
    table, stored = bnb.create_dynamic_map(), []
    for share in shares:
        codes = theirs("nf4-double", share, mean, block=block)
        second = bnb.QuantState(absmax=torch.from_numpy(codes.scale_scales), code=table, blocksize=SCALE_BLOCK, dtype=torch.float32)
        stored.append(bnb.dequantize_blockwise(torch.from_numpy(codes.scales), second) + mean)
    return torch.cat(stored)


def quantized(linear, form, ranks, block=BLOCK, library=False):
    """bitsandbytes' module in place of a linear. `library`: with the scales that it makes by itself."""
    made = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.float32,
                                      compress_statistics=library and form == "nf4-double", quant_type="nf4")
    made.weight = bitsandbytes.nn.Params4bit(linear.weight.data.clone(), requires_grad=False, blocksize=block, quant_type="nf4",
                                             compress_statistics=library and form == "nf4-double").to("cpu")
    made.bias = linear.bias
    if not library:
        made.weight.quant_state.absmax = scales_of(form, linear.weight.data, ranks, block)
    return made


class Place(lora.Place):
    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        base = reference.build(self.path, self.base, attention)
        how = {"form": "nf4-double", "ranks": 1 if case.sharding == "no-shard" else case.ranks} | self.options
        if how.pop("quantizes", True):
            for layer in base.model.layers:
                for parent in list(layer.modules()):
                    for name, child in list(parent.named_children()):
                        if isinstance(child, torch.nn.Linear):
                            setattr(parent, name, quantized(child, **how))
            base.is_loaded_in_4bit = True
        model = lora.Adapted(base, lora.config_of(), case)
        reference.load(model, self.adapted)
        return reference.train(model, batches(case, self.data, hyper.steps), hyper, mutation, **options)


def cases():
    place, ok = Place("llama"), True
    for case in (Case("llama", extra=FLAGS), Case("llama", ranks=2, extra=FLAGS),
                 Case("llama", ranks=2, accumulation=2, checkpointing="full", extra=FLAGS),
                 Case("llama", ranks=2, sharding="no-shard", loss="chunked:3", extra=FLAGS)):
        ok &= lora.equal(place, case)[0]
    single = (*FLAGS, "--quantization", "nf4")
    for ranks in (1, 2):
        ok &= lora.equal(place, Case("llama", ranks=ranks, extra=single), form="nf4")[0]
    ok &= lora.equal(place, Case("llama", extra=single), form="nf4", library=True)[0]
    return ok & lora.equal(Place("qwen2"), Case("qwen2", ranks=2, extra=FLAGS))[0]


def mistakes():
    place = Place("llama")
    case = Case("llama", ranks=2, extra=FLAGS)
    ok, ours = lora.equal(place, case)
    ok &= lora.noticed(place, case, ours, "blocks of 128", block=128)
    ok &= lora.noticed(place, case, ours, "scales that are not quantized", form="nf4")
    return ok & lora.noticed(place, case, ours, "a base that is not quantized", quantizes=False)


if __name__ == "__main__":
    run_part(cases, mistakes)
