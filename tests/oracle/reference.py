"""A plain PyTorch training loop over transformers' models: the reference for the executor.

Loss is the sum over label tokens of the global batch divided by their number; gradients are summed over micro-batches.
Every hyper-parameter can be changed by a Mutation, so that the comparison itself can be tested.
"""

import json
import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
import transformers

IGNORE_INDEX = -100


@dataclass(frozen=True)
class Hyper:
    """What a run is trained with; the executor's flags carry the same names."""

    optimizer: str = "adamw"
    steps: int = 20
    lr: float = 5e-3
    warmup: int = 3
    weight_decay: float = 0.3
    beta1: float = 0.8
    beta2: float = 0.9
    eps: float = 1e-5     # far below typical gradients, far above rounding: twenty steps stay well-conditioned
    momentum: float = 0.7
    beta2_decay: float = 0.6
    eps2: float = 1e-2
    update_clip: float = 1.1
    clip: float = 0.5

    def with_(self, **changes):
        return replace(self, **changes)


@dataclass(frozen=True)
class Mutation:
    """A deliberate mistake in the reference; each must make the comparison fail."""

    name: str = "none"
    hyper: dict = None            # fields of Hyper to change
    no_bias_correction: bool = False
    accumulation_scale: float = 1.0   # gradients multiplied by this

    def apply(self, hyper):
        return hyper.with_(**(self.hyper or {}))


NO_MUTATION = Mutation()


def model_class(config_json):
    return getattr(transformers, config_json["architectures"][0])


def build(config_path, state=None, attention=None, dtype=torch.float32):
    """transformers' own class from a config.json, optionally with the given full state, in training mode."""
    with open(config_path, encoding="utf-8") as f:
        config_json = json.load(f)
    # Gemma 2's softcap exists only on the eager path.
    attention = attention or ("eager" if config_json["model_type"] == "gemma2" else "sdpa")
    kind = model_class(config_json)
    config = kind.config_class(**{k: v for k, v in config_json.items() if k != "architectures"})
    config._attn_implementation = attention
    config.use_cache = False
    torch.manual_seed(0)
    model = kind._from_config(config, attn_implementation=attention) if hasattr(kind, "_from_config") else kind(config)
    model.to(torch.float32)
    if state is not None:
        load(model, state)
    model.to(dtype)
    model.train()
    return model


def load(model, state):
    """Copies full tensors by their named_parameters() names; every parameter must be there."""
    parameters = dict(model.named_parameters())
    missing = sorted(set(parameters) - set(state))
    if missing:
        raise SystemExit(f"the state lacks {missing[:3]} ({len(missing)} in all)")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])


def spread_weights(model, seed, scale=0.08):
    """Weights with enough spread that every part of the model matters: norms near one, biases not zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1 and "bias" not in name and float(parameter.mean()) > 0.5:
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_((scale if parameter.dim() > 1 else 0.1) * noise)


def full_state(model):
    return {name: p.detach().clone().contiguous() for name, p in model.named_parameters()}


def logits_of(model, ids):
    return model(input_ids=ids).logits


def loss_of(logits, labels, scale):
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORE_INDEX, reduction="sum") * scale


def learning_rate(hyper, step):
    """Linear warmup to the peak, then a cosine that would reach zero one step after the last; `step` counts from 1."""
    if step <= hyper.warmup:
        return hyper.lr * step / hyper.warmup
    return hyper.lr * 0.5 * (1 + math.cos(math.pi * (step - 1 - hyper.warmup) / (hyper.steps - hyper.warmup)))


def global_norm(gradients):
    return torch.sqrt(sum(g.double().pow(2).sum() for g in gradients.values()))


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), written out so that it can be mutated."""

    def __init__(self, model, hyper, mutation):
        self.parameters = dict(model.named_parameters())
        self.hyper, self.mutation, self.count = hyper, mutation, 0
        self.m = {n: torch.zeros_like(p) for n, p in self.parameters.items()}
        self.v = {n: torch.zeros_like(p) for n, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, gradients, lr):
        h = self.hyper
        self.count += 1
        correct1 = 1.0 if self.mutation.no_bias_correction else 1 - h.beta1**self.count
        correct2 = 1.0 if self.mutation.no_bias_correction else 1 - h.beta2**self.count
        for name, p in self.parameters.items():
            g = gradients[name].to(p.dtype)
            p.mul_(1 - lr * h.weight_decay)
            self.m[name].mul_(h.beta1).add_(g, alpha=1 - h.beta1)
            self.v[name].mul_(h.beta2).addcmul_(g, g, value=1 - h.beta2)
            p.addcdiv_(self.m[name] / correct1, (self.v[name] / correct2).sqrt().add_(h.eps), value=-lr)


class Sgd:
    """PyTorch's own."""

    def __init__(self, model, hyper, _mutation):
        self.parameters = dict(model.named_parameters())
        self.optimizer = torch.optim.SGD(self.parameters.values(), lr=hyper.lr, momentum=hyper.momentum, weight_decay=hyper.weight_decay)

    def step(self, gradients, lr):
        for name, p in self.parameters.items():
            p.grad = gradients[name].to(p.dtype)
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()


class Adafactor:
    """PyTorch's own."""

    def __init__(self, model, hyper, _mutation):
        self.parameters = dict(model.named_parameters())
        self.optimizer = torch.optim.Adafactor(self.parameters.values(), lr=hyper.lr, beta2_decay=-hyper.beta2_decay, eps=(None, hyper.eps2), d=hyper.update_clip, weight_decay=hyper.weight_decay)

    step = Sgd.step


class Lion:
    """Chen et al., arXiv:2302.06675, algorithm 2."""

    def __init__(self, model, hyper, _mutation):
        self.parameters, self.hyper = dict(model.named_parameters()), hyper
        self.m = {n: torch.zeros_like(p) for n, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, gradients, lr):
        h = self.hyper
        for name, p in self.parameters.items():
            direction = torch.sign(h.beta1 * self.m[name] + (1 - h.beta1) * gradients[name])
            p.sub_(lr * (direction + h.weight_decay * p))
            self.m[name].mul_(h.beta2).add_(gradients[name], alpha=1 - h.beta2)


OPTIMIZERS = {"adamw": AdamW, "sgd": Sgd, "lion": Lion, "adafactor": Adafactor}
# The fields of Hyper that each takes.
OF_ADAMW = ("weight_decay", "beta1", "beta2", "eps")
OPTIONS = {"adamw": OF_ADAMW, "adamw-8bit": OF_ADAMW, "adamw-4bit": OF_ADAMW, "adamw-fp8": OF_ADAMW, "adamw-fp8-blocks": OF_ADAMW, "sgd": ("weight_decay", "momentum"), "lion": ("weight_decay", "beta1", "beta2"),
           "adafactor": ("weight_decay", "beta2_decay", "eps2", "update_clip")}


@dataclass
class Trace:
    """What a run leaves behind."""

    losses: list
    logits: torch.Tensor           # of the first micro-batch of step 1
    gradients: dict                # of step 1, after accumulation, before clipping
    parameters: dict               # at the end
    last_gradients: dict = None    # of the last step, likewise


def gradients_of(model, batches, compute=None):
    """Summed gradients and loss of one step. `batches`: list of (ids, labels); `compute`: a model of another dtype that
    shares names (bf16 next to fp32 masters)."""
    run = compute or model
    scale = 1.0 / sum(int((labels != IGNORE_INDEX).sum()) for _, labels in batches)
    total, first_logits = 0.0, None
    summed = {}
    for ids, labels in batches:
        run.zero_grad(set_to_none=True)
        logits = logits_of(run, ids)
        first_logits = logits.detach().clone() if first_logits is None else first_logits
        loss = loss_of(logits, labels, scale)
        loss.backward()
        total += float(loss.detach().double())
        for name, p in run.named_parameters():
            g = torch.zeros_like(p, dtype=torch.float32) if p.grad is None else p.grad.float()
            summed[name] = summed[name] + g if name in summed else g.clone()
    return total, first_logits, summed


def train(model, batches_of_step, hyper, mutation=NO_MUTATION, compute_dtype=None, transform=None, transform_after_clip=False):
    """`batches_of_step(step)` gives the micro-batches of the whole global batch; steps count from 1. `transform(step, gradients)`
    returns what is clipped and given to the optimizer."""
    hyper = mutation.apply(hyper)
    optimizer = OPTIMIZERS[hyper.optimizer](model, hyper, mutation)
    trace = Trace([], None, None, None)
    compute = None
    if compute_dtype is not None:
        compute = type(model)._from_config(model.config, attn_implementation=model.config._attn_implementation)
        compute.to(compute_dtype)
        compute.train()
    for step in range(1, hyper.steps + 1):
        if compute is not None:
            load(compute, full_state(model))
        loss, logits, gradients = gradients_of(model, batches_of_step(step), compute)
        gradients = {n: g * mutation.accumulation_scale for n, g in gradients.items()}
        if transform is not None and not transform_after_clip:
            gradients = transform(step, gradients)
        if step == 1:
            trace.logits = logits
            trace.gradients = {n: g.clone() for n, g in gradients.items()}
        if step == hyper.steps:
            trace.last_gradients = {n: g.clone() for n, g in gradients.items()}
        trace.losses.append(loss)
        if hyper.clip > 0:
            factor = min(1.0, hyper.clip / (float(global_norm(gradients)) + 1e-6))
            gradients = {n: g * factor for n, g in gradients.items()}
        if transform is not None and transform_after_clip:
            gradients = transform(step, gradients)
        optimizer.step(gradients, learning_rate(hyper, step))
    trace.parameters = full_state(model)
    return trace
