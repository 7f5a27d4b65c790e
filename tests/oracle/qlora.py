"""--method qlora against PEFT over bitsandbytes' Linear4bit: the same base, quantized by each, the same adapters and rows.

On ranks whose shares aren't whole blocks of 256 scales, the reference's scales are those of each share, made by bitsandbytes' functions.
bitsandbytes' fast function for CPUs makes other numbers where a block goes from one row to the next (down_proj has 96 columns): its plain
one, which it takes for odd columns, is used instead. DoRA's norms are those of the matrices that it makes whole; over int8 and fp8, of PEFT
over linears with the whole values of bitsandbytes and torchao, whose own products round inputs too.
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
from transformers.pytorch_utils import Conv1D
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

FLAGS = ("--method", "qlora", *lora.FLAGS[2:])
DORA = (*FLAGS, "--dora", "on")


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


def whole_values(form, weight, ranks):
    """What the matrix is once it has been quantized, by shares of rows as it is stored."""
    shares = [part for part in weight.split(-(-weight.shape[0] // ranks)) if part.numel()]
    mean = None
    if form == "nf4-double":
        mean = torch.cat([bnb.quantize_4bit(share, blocksize=BLOCK, quant_type="nf4")[1].absmax for share in shares]).double().mean().float()
    return torch.cat([torch.from_numpy(theirs(form, share.contiguous(), mean).whole).reshape(share.shape) for share in shares])


def quantized(linear, form, ranks, block=BLOCK, library=False):
    """bitsandbytes' module in place of a linear. `library`: with the scales that it makes by itself."""
    if form in ("int8", "fp8") or isinstance(linear, Conv1D):
        linear.weight.data.copy_(whole_values(form, linear.weight.data, ranks))
        return linear
    made = bitsandbytes.nn.Linear4bit(linear.in_features, linear.out_features, bias=linear.bias is not None, compute_dtype=torch.float32,
                                      compress_statistics=library and form == "nf4-double", quant_type="nf4")
    made.weight = bitsandbytes.nn.Params4bit(linear.weight.data.clone(), requires_grad=False, blocksize=block, quant_type="nf4",
                                             compress_statistics=library and form == "nf4-double").to("cpu")
    made.bias = linear.bias
    if not library:
        made.weight.quant_state.absmax = scales_of(form, linear.weight.data, ranks, block)
    return made


class Place(lora.Place):
    """`magnitudes`: as in lora.Place; as they begin, they are those that PEFT makes of the quantized matrices."""

    def __init__(self, family, targets="all-linear", magnitudes=None):
        super().__init__(family, targets, magnitudes)
        self.magnitudes = magnitudes

    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        base = reference.build(self.path, self.base, attention)
        how = {"form": "nf4-double", "ranks": 1 if case.sharding == "no-shard" else case.ranks} | self.options
        dropout = how.pop("dropout", 0.0)
        if how.pop("quantizes", True):
            for layer in base.transformer.h if case.family == "gpt2" else base.model.layers:
                for parent in list(layer.modules()):
                    for name, child in list(parent.named_children()):
                        if isinstance(child, (torch.nn.Linear, Conv1D)):
                            setattr(parent, name, quantized(child, **how))
            base.is_loaded_in_4bit = how["form"].startswith("nf4") and case.family != "gpt2"
        model = lora.Adapted(base, lora.config_of(target_modules=self.targets, use_dora=self.dora), case, dropout)
        if self.magnitudes == "initial":
            own = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("_vector")}
            self.adapted, self.state = self.adapted | own, self.state | own
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
    ok &= lora.equal(Place("qwen2"), Case("qwen2", ranks=2, extra=FLAGS))[0]
    return ok & dora_cases()


def dora_cases():
    stored, initial = Place("llama", magnitudes="stored"), Place("qwen2", magnitudes="initial")
    ok = lora.equal(stored, Case("llama", extra=DORA))[0]
    ok &= lora.equal(initial, Case("qwen2", extra=(*DORA, "--quantization", "nf4")), form="nf4", library=True)[0]
    ok &= lora.equal(initial, Case("qwen2", ranks=2, accumulation=2, checkpointing="full", extra=DORA))[0]
    dropped = Case("llama", ranks=2, extra=(*DORA, "--lora-dropout", str(lora.DROPOUT)))
    ok &= lora.equal(stored, dropped, dropout=lora.DROPOUT)[0]
    for form in ("int8", "fp8"):
        case = Case("qwen2", ranks=2, extra=(*lora.DORA, "--quantization", form))
        ok &= lora.equal(initial, case, form=form)[0]
    return ok & lora.equal(Place("gpt2", magnitudes="initial"), Case("gpt2", ranks=2, extra=DORA))[0]


def mistakes():
    place = Place("llama")
    case = Case("llama", ranks=2, extra=FLAGS)
    ok, ours = lora.equal(place, case)
    ok &= lora.noticed(place, case, ours, "blocks of 128", block=128)
    ok &= lora.noticed(place, case, ours, "scales that are not quantized", form="nf4")
    ok &= lora.noticed(place, case, ours, "a base that is not quantized", quantizes=False)
    place, case = Place("llama", magnitudes="initial"), Case("llama", extra=DORA)
    same, ours = lora.equal(place, case)
    place.magnitudes, place.adapted = "stored", lora.Place("llama", magnitudes="initial").adapted
    return ok & same & lora.noticed(place, case, ours, "norms of matrices that are not quantized")


if __name__ == "__main__":
    run_part(cases, mistakes)
