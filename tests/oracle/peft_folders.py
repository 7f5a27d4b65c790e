"""Adapters as PEFT writes and reads them. What --save-adapters writes, PEFT loads: the same configuration as its own, the same tensors,
equal logits. What PEFT's save_pretrained writes, --adapters loads, with no other flag: the same tensors, equal logits. What of a
configuration isn't supported is refused by name. Arguments: `cases` or `refusals`."""

import os
import subprocess
import tempfile

import peft
import torch
from safetensors.torch import load_file

import executor
import reference
from parts import run_part

LIMIT = 1e-5  # of logits and losses, relative (docs/testing.md)
PREFIX = "base_model.model."
STILL = reference.Hyper(steps=1, lr=0.0, warmup=0)
TRAINED = reference.Hyper(steps=3)
OURS = ("--method", "lora", "--lora-rank", "4", "--lora-alpha", "6")


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def base_of(place):
    return reference.build(executor.model_path(place.family), place.state).eval()


def logits_of(model, case, place):
    ids, labels = executor.rows_of(case, place.data, case.global_rows)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return logits, float(loss)


def check(what, holds, details=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what} {details}", flush=True)
    return holds


def same_answers(what, ours, theirs, before):
    """`ours`: a run; `theirs`: logits and loss; `before`: logits without adapters, which must not pass."""
    logits, loss = theirs
    errors = relative(ours.logits.reshape(logits.shape), logits), abs(ours.losses[0] - loss) / loss
    notices = relative(before, logits) > 10 * LIMIT
    return check(what, max(errors) <= LIMIT and notices, f"logits differ by {errors[0]:.1e}, losses by {errors[1]:.1e}")


def ours_in_peft(place, case, directory, flags=OURS, **changes):
    """Saved here from 2 ranks, loaded by PEFT."""
    family, folder = case.family, os.path.join(directory, "ours")
    trained = executor.run(executor.Case(family, ranks=2, extra=(*flags, "--save-adapters", folder)), TRAINED, place.data, place.weights, directory)
    model = peft.PeftModel.from_pretrained(base_of(place), folder).eval()
    stored = load_file(os.path.join(folder, "adapter_model.safetensors"))
    expected = {PREFIX + name: tensor for name, tensor in trained.parameters.items() if ".lora_" in name}
    ok = check(f"{family}: every tensor", set(stored) == set(expected) and all(torch.equal(stored[n], t) for n, t in expected.items()))
    task = None if case.masked else "CAUSAL_LM"
    own = peft.get_peft_model(base_of(place), peft.LoraConfig(**({"r": 4, "lora_alpha": 6, "target_modules": "all-linear", "task_type": task} | changes)))
    theirs = os.path.join(directory, "own")
    own.save_pretrained(theirs)
    ok &= check(f"{family}: PEFT expects these tensors", set(load_file(os.path.join(theirs, "adapter_model.safetensors"))) == set(expected))
    settings, usual = (peft.LoraConfig.from_pretrained(f).to_dict() for f in (folder, theirs))
    told = {"target_modules", "base_model_name_or_path", "peft_version"} | ({"auto_mapping"} if case.masked else set())  # of how the model was made
    differing = {key for key in usual if settings[key] != usual[key]} - told
    ok &= check(f"{family}: PEFT's configuration", not differing, str(differing or ""))
    back = executor.run(executor.Case(family, extra=("--adapters", folder)), STILL, place.data, place.weights, directory)
    before, _ = logits_of(base_of(place), case, place)
    return ok & same_answers(f"{family}: saved here", back, logits_of(model, case, place), before)


def theirs_here(place, case, directory, **config):
    """Saved by PEFT, loaded here on 2 ranks."""
    family, folder = case.family, os.path.join(directory, "theirs")
    model = peft.get_peft_model(base_of(place), peft.LoraConfig(**({"r": 3, "lora_alpha": 5, "target_modules": "all-linear"} | config)))
    generator = torch.Generator().manual_seed(5)
    for name, p in model.named_parameters():
        if ".lora_magnitude" in name:
            p.data *= 1 + 0.2 * torch.randn(p.shape, generator=generator)
        elif ".lora_" in name:
            p.data = 0.2 * torch.randn(p.shape, generator=generator)
    model.eval().save_pretrained(folder)
    two = executor.Case(family, ranks=2, micro_batch=1, extra=("--adapters", folder))
    run = executor.run(two, STILL, place.data, place.weights, directory)
    stored = load_file(os.path.join(folder, "adapter_model.safetensors"))
    ok = check(f"{family} {config or ''}: every tensor", all(torch.equal(run.parameters[n.removeprefix(PREFIX)], t) for n, t in stored.items()))
    ok &= check(f"{family}: no other adapter", {PREFIX + n for n in run.parameters if ".lora_" in n} == set(stored))
    before, _ = logits_of(base_of(place), case, place)
    return ok & same_answers(f"{family}: saved by PEFT", run, logits_of(model, case, place), before)


def stored_dtype(place, directory):
    folder = os.path.join(directory, "bf16")
    case = executor.Case("llama", precision="bf16-pure", extra=(*OURS, "--save-adapters", folder))
    executor.run(case, TRAINED, place.data, place.weights, directory)
    dtypes = {t.dtype for t in load_file(os.path.join(folder, "adapter_model.safetensors")).values()}
    return check("llama: adapters in bf16 are saved in it", dtypes == {torch.bfloat16})


def cases():
    ok = True
    for family in ("llama", "gpt2", "phi3", "bert"):
        place, case = executor.Workplace(family), executor.Case(family)
        with tempfile.TemporaryDirectory(prefix="vramfit-peft-") as directory:
            dora = {"use_dora": True} if family in ("gpt2", "phi3") else {}
            ok &= ours_in_peft(place, case, directory, (*OURS, "--dora", "on") if dora else OURS, **dora)
            ok &= theirs_here(place, case, directory, **dora)
            if family != "llama":
                continue
            ok &= ours_in_peft(place, case, directory, (*OURS, "--rslora", "on", "--lora-targets", "q_proj,layers.1.*.down_proj"),
                               use_rslora=True, target_modules=r".*q_proj|.*layers\.1\.mlp\.down_proj")
            ok &= stored_dtype(place, directory)
            for config in ({"use_rslora": True, "target_modules": ["q_proj", "down_proj", "nowhere"]},
                           {"target_modules": ["q_proj", "o_proj"], "layers_to_transform": [1]},
                           {"target_modules": r".*layers\.0\..*(v_proj|gate_proj)"},
                           {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["model.layers.0.self_attn.q_proj"]}):
                ok &= theirs_here(place, case, directory, **config)
    return ok


# What PEFT can save and this engine can't train, by the key that is named.
UNSUPPORTED = {
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "bias": {"bias": "all"},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "alpha_pattern": {"alpha_pattern": {"q_proj": 2}},
    "lora_bias": {"lora_bias": True},
    "trainable_token_indices": {"trainable_token_indices": [1, 2]},
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "lm_head": {"target_modules": ["lm_head", "q_proj"]},
    "embed_tokens": {"target_modules": ["embed_tokens", "q_proj"]},
}


def said_of(folder, *flags):
    command = [os.path.join(executor.BIN, "vramfit"), "run", executor.model_path("llama"), "--gpus", "1xcpu-4GiB", "--seq-len", "16", "--steps", "1",
               "--adapters", folder, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr


def refusals():
    ok, place = True, executor.Workplace("llama")
    with tempfile.TemporaryDirectory(prefix="vramfit-peft-") as directory:
        for key, changes in UNSUPPORTED.items():
            folder = os.path.join(directory, key)
            peft.get_peft_model(base_of(place), peft.LoraConfig(**({"r": 3, "target_modules": ["q_proj"]} | changes))).save_pretrained(folder)
            code, said = said_of(folder)
            ok &= check(f"refused: {key}", code in (2, 5) and key in said and len(said.splitlines()) == 1, said.strip())
        folder = os.path.join(directory, "ia3")
        peft.get_peft_model(base_of(place), peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])).save_pretrained(folder)
        code, said = said_of(folder)
        ok &= check("refused: another method", code == 2 and "peft_type" in said and "IA3" in said, said.strip())
        folder = os.path.join(directory, "pickled")
        model = peft.get_peft_model(base_of(place), peft.LoraConfig(r=3, target_modules=["q_proj"]))
        model.save_pretrained(folder, safe_serialization=False)
        code, said = said_of(folder)
        ok &= check("refused: a pickle", code == 5 and "never unpickled" in said, said.strip())
        model.save_pretrained(os.path.join(directory, "plain"))
        for flags, named in ((("--lora-rank", "4"), "--lora-rank 4"), (("--lora-alpha", "1"), "--lora-alpha 1"), (("--rslora", "on"), "--rslora on"), (("--dora", "on"), "--dora on"),
                             (("--method", "full"), "--method full"), (("--lora-targets", "v_proj"), "q_proj"), (("--lora-targets", "q_proj,v_proj"), "v_proj")):
            code, said = said_of(os.path.join(directory, "plain"), *flags)
            ok &= check(f"contradiction: {' '.join(flags)}", code in (2, 5) and named in said, said.strip().splitlines()[-1])
        code, said = said_of(os.path.join(directory, "plain"), "--lora-dropout", "0.1")
        ok &= check("dropout may differ", code == 0, said.strip() if code else "")
    return ok


if __name__ == "__main__":
    run_part(cases, refusals)
