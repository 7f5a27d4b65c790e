"""--method lora against PEFT: the same base, the same adapters, the same rows; losses, gradients and updates of adapters.

Dropout is drawn here a second time, from its definition in docs/lora.md, over all rows of the global batch: so it doesn't depend on the mesh.
Each mistake in the reference (another scale, another step's masks, no dropout, other magnitudes or none) must be noticed. Arguments:
`cases` or `mistakes`.
"""


import numpy
import peft
import torch
from safetensors.torch import save_file

import reference
from child_tuning import GOLDEN, MASK, mix
from executor import Case, Workplace, batches, model_path
from parity import FIRST_STEP_TOLERANCE, LOSS_TOLERANCE, UPDATE_TOLERANCE, compare, report
from parts import run_part

RANK, ALPHA, DROPOUT = 4, 6, 0.2
STREAMS = 0x64726F70
HYPER = reference.Hyper(steps=6)
FLAGS = ("--method", "lora", "--lora-rank", str(RANK), "--lora-alpha", str(ALPHA))
DORA = (*FLAGS, "--dora", "on")


def kept(seed, step, name, first, count, keep):
    """Elements `first` to `first + count` of the mask of one adapter in one step."""
    fnv = 0xCBF29CE484222325
    for byte in name.encode():
        fnv = ((fnv ^ byte) * 0x100000001B3) & MASK
    key = mix((mix(mix(mix(seed ^ STREAMS)) ^ fnv) + (step + 1) * GOLDEN) & MASK)
    x = numpy.arange(first + 1, first + count + 1, dtype=numpy.uint64) * numpy.uint64(GOLDEN) + numpy.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
    return torch.from_numpy((x >> numpy.uint64(11)) < numpy.uint64(int(keep * 2**53)))


class DrawnDropout(torch.nn.Module):
    """In place of PEFT's dropout before A: rows of the data order follow each other, call by call."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = [model], name

    def forward(self, x):
        model = self.model[0]
        elements = x.numel()
        mask = kept(model.seed, model.step, self.name, model.calls * elements, elements, 1 - model.dropout)
        return x * mask.reshape(x.shape) / (1 - model.dropout)


class Adapted:
    """A PEFT model of which reference.py sees the adapters alone, by the engine's names."""

    def __init__(self, model, config, case, dropout=0.0, step_offset=0):
        self.model = peft.get_peft_model(model, config)
        self.model.train()
        self.config = model.config
        self.seed, self.accumulation, self.dropout, self.step_offset = case.seed, case.accumulation, dropout, step_offset
        self.calls = -1
        for name, module in self.model.named_modules():
            if dropout and hasattr(module, "lora_dropout"):
                short = name.removeprefix("base_model.model.") + ".lora_A.weight"
                module.lora_dropout["default"] = DrawnDropout(self, short)

    @property
    def step(self):
        return self.calls // self.accumulation + 1 + self.step_offset

    def named_parameters(self):
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                yield name.removeprefix("base_model.model.").replace(".default.", ".").replace("_vector.weight", "_vector"), p

    def zero_grad(self, set_to_none):
        self.model.zero_grad(set_to_none=set_to_none)

    def __call__(self, input_ids):
        self.calls += 1
        return self.model(input_ids=input_ids)


def config_of(**changes):
    return peft.LoraConfig(**({"r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "target_modules": "all-linear"} | changes))


class Place(Workplace):
    """The family's weights with adapters that are not zero, in one file. `magnitudes`: of DoRA, in the file, or as they begin."""

    def __init__(self, family, targets="all-linear", magnitudes=None):
        super().__init__(family)
        self.targets, self.dora = targets, magnitudes is not None
        self.adapted, self.options = {}, {}
        model = Adapted(reference.build(self.path, self.state), config_of(target_modules=targets, use_dora=self.dora), Case(family))
        generator = torch.Generator().manual_seed(11)
        for name, p in model.named_parameters():
            drawn = torch.randn(p.shape, generator=generator)
            length = name.endswith("_vector")
            self.adapted[name] = p.detach() * (1 + 0.2 * drawn if magnitudes == "stored" else 1) if length else 0.2 * drawn
        self.base = dict(self.state)
        self.state = self.base | self.adapted
        save_file({name: t for name, t in self.state.items() if magnitudes != "initial" or not name.endswith("_vector")}, self.weights)

    @property
    def path(self):
        return model_path(self.family)

    def reference(self, case, hyper, mutation=reference.NO_MUTATION, attention=None, **options):
        made = {"target_modules": self.targets, "use_dora": self.dora} | self.options.get("config", {})
        model = Adapted(reference.build(self.path, self.base, attention), config_of(**made), case, self.options.get("dropout", 0.0),
                        self.options.get("step_offset", 0))
        names = {name for name, _ in model.named_parameters()}
        reference.load(model, {name: t for name, t in (self.adapted | self.options.get("adapted", {})).items() if name in names})
        return reference.train(model, batches(case, self.data, hyper.steps), hyper, mutation, **options)


def equal(place, case, **options):
    place.options = options
    c, ours, _ = compare(case, place, HYPER)
    return report(case, c), ours


def noticed(place, case, ours, name, **options):
    place.options = options
    c, _, _ = compare(case, place, HYPER, ours=ours)
    limits = {"loss": LOSS_TOLERANCE, "gradient": FIRST_STEP_TOLERANCE, "update": UPDATE_TOLERANCE}
    factor = max([c.worst[what][0] / limit for what, limit in limits.items() if what in c.worst], default=0)
    ok = bool(c.failures) and factor >= 10
    print(f"{'ok  ' if ok else 'FAIL'} mistake {name}: {factor:.0f} times the tolerance", flush=True)
    return ok


def cases():
    ok = True
    for family in ("llama", "gpt2", "phi3", "gemma2", "bert"):
        place = Place(family)
        ok &= equal(place, Case(family, extra=FLAGS))[0]
        ok &= equal(place, Case(family, ranks=2, accumulation=2, extra=FLAGS))[0]
    place = Place("llama")
    dropped = (*FLAGS, "--lora-dropout", str(DROPOUT))
    for case in (Case("llama", extra=dropped), Case("llama", ranks=2, accumulation=2, checkpointing="full", extra=dropped),
                 Case("llama", ranks=2, sharding="no-shard", loss="chunked:3", extra=dropped)):
        ok &= equal(place, case, dropout=DROPOUT)[0]
    # With half of alpha the scale is that of the other cases; twice that scale doubles what rounding adds up to in six steps.
    halved = ("--method", "lora", "--lora-rank", str(RANK), "--lora-alpha", str(ALPHA // 2), "--rslora", "on")
    ok &= equal(place, Case("llama", ranks=2, extra=halved), config={"use_rslora": True, "lora_alpha": ALPHA // 2})[0]
    for family in ("llama", "gpt2", "phi3", "bert"):
        stored, initial = Place(family, magnitudes="stored"), Place(family, magnitudes="initial")
        ok &= equal(stored, Case(family, extra=DORA))[0]
        ok &= equal(initial, Case(family, ranks=2, accumulation=2, checkpointing="full", extra=DORA))[0]
    dropped = (*DORA, "--lora-dropout", str(DROPOUT))
    for family in ("llama", "gpt2", "phi3", "bert"):
        ok &= equal(Place(family, magnitudes="stored"), Case(family, ranks=2, accumulation=2, checkpointing="full", extra=dropped), dropout=DROPOUT)[0]
    ok &= equal(Place("qwen2", magnitudes="initial"), Case("qwen2", extra=dropped), dropout=DROPOUT)[0]
    few = ("--lora-targets", "q_proj,*.down_proj")
    return ok & equal(Place("llama", ["q_proj", "down_proj"]), Case("llama", ranks=2, extra=(*FLAGS, *few)))[0]


def mistakes():
    place = Place("llama")
    case = Case("llama", ranks=2, extra=(*FLAGS, "--lora-dropout", str(DROPOUT)))
    ok, ours = equal(place, case, dropout=DROPOUT)
    ok &= noticed(place, case, ours, "another scale", dropout=DROPOUT, config={"lora_alpha": ALPHA + 1})
    ok &= noticed(place, case, ours, "no dropout")
    ok &= noticed(place, case, ours, "another share dropped", dropout=DROPOUT + 0.05)
    ok &= noticed(place, case, ours, "another step's masks", dropout=DROPOUT, step_offset=1)
    place, case = Place("llama", magnitudes="stored"), Case("llama", extra=DORA)
    same, ours = equal(place, case)
    ok &= same & noticed(place, case, ours, "no magnitudes", config={"use_dora": False})
    longer = {name: 1.01 * t for name, t in place.adapted.items() if name.endswith("_vector")}
    ok &= noticed(place, case, ours, "other magnitudes", adapted=longer)
    case = Case("llama", extra=(*DORA, "--lora-dropout", str(DROPOUT)))
    same, ours = equal(place, case, dropout=DROPOUT)
    return ok & same & noticed(place, case, ours, "no dropout, with magnitudes")


if __name__ == "__main__":
    run_part(cases, mistakes)
