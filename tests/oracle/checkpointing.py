"""The engine's activation checkpointing beside torch.utils.checkpoint around transformers' layers, in fp32: losses, gradients and updates
within the limits of parity.py, and as many FLOPs of products and attention that are computed again.

    checkpointing.py cases      full, every Nth layer, selected ops (policies of torch's selective checkpointing that keep the same ones), and
                                budgets, beside the partitioner of torch.compile with as large an activation_memory_budget
    checkpointing.py mistakes   in the reference must be noticed: layers that compute again from another input, and policies that keep other ops

How a budget is spent is compared in activation_budget.py; here, that what PyTorch computes again is less than with full checkpoints.
"""

import collections
import functools
import os
import subprocess
from dataclasses import replace

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import executor
import reference
from executor import Case, Workplace, batches
from parity import HYPER, compare, report
from parts import run_part
from program_flops import flops_of_step

STEPS = HYPER.with_(steps=3)
aten = torch.ops.aten
KINDS = {aten.mm: "linear", aten.addmm: "linear", aten._scaled_dot_product_flash_attention_for_cpu: "attention"}


def causal_attention_flops(q, k, _v, *_, out_shape=None, **__):
    return 2 * q[0] * q[1] * q[2] * k[2] * q[3]


def keep(kept):
    """A context_fn that keeps every Nth op of a kind in a layer, from its first one on. `kept`: {kind: N}."""

    def contexts():
        seen = collections.Counter()

        def policy(context, op, *_, **__):
            kind = KINDS.get(op.overloadpacket)
            if kind not in kept:
                return CheckpointPolicy.PREFER_RECOMPUTE
            seen[kind, context.is_recompute] += 1
            is_kept = (seen[kind, context.is_recompute] - 1) % kept[kind] == 0
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts


def checkpointed(model, every=1, kept=None, again_from=1.0):
    """`again_from` is a mistake: what a layer's input is multiplied by when it runs again."""
    options = {"context_fn": keep(kept)} if kept else {}

    def wrapped(forward):
        def checkpoint_of(x, *args, **kwargs):
            runs = iter((1.0, again_from))
            return checkpoint(lambda y, *a, **k: forward(y * next(runs), *a, **k), x, *args, use_reentrant=False, **options, **kwargs)
        return checkpoint_of

    for layer in layers_of(model)[::every]:
        layer.forward = wrapped(layer.forward)


def layers_of(model):
    return next(module for name, module in model.named_modules() if name.endswith((".layers", ".h")))


PRODUCTS_OF_LAYER = 8   # with attention


def partitioned(model, budget, again):
    """Layers compiled to graphs that run op by op. `again` gets the products that each one's backward graph computes again."""

    def partition(joint, inputs, **arguments):
        with config.patch(activation_memory_budget=budget):
            forward, backward = min_cut_rematerialization_partition(joint, inputs, **arguments)
        again.append(products_of(forward) + products_of(backward) - products_of(joint))
        return forward, backward

    def products_of(graph):
        return sum(getattr(node.target, "overloadpacket", None) in KINDS for node in graph.graph.nodes)

    compiler = lambda graph, _: make_boxed_func(graph.forward)  # noqa: E731
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)
    for layer in layers_of(model):
        layer.compile(backend=backend)


def model_of(case, place):
    return reference.build(executor.model_path(case.family), place.state)


def flops_of_torch(case, place, change):
    model = model_of(case, place)
    change(model)
    ids, labels = batches(case, place.data, 1)(1)[0]
    with FlopCounterMode(display=False, custom_mapping={aten._scaled_dot_product_flash_attention_for_cpu: causal_attention_flops}) as counter:
        reference.loss_of(reference.logits_of(model, ids), labels, 1.0).backward()
    return counter.get_total_flops()


def flops_of_engine(case, _place, _change):
    command = [os.path.join(executor.BIN, "vramfit"), "program", executor.model_path(case.family), "--stack", "vramfit", "--gpus", "1xcpu-4GiB", "--precision", "fp32", "--seq-len", str(case.sequence),
               "--micro-batch", str(case.ranks * case.micro_batch), "--checkpointing", case.checkpointing]
    return flops_of_step(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


CASES = [("llama", "full", {}, {}), ("llama", "every:2", {"every": 2}, {"ranks": 2}), ("gpt2", "every:2", {"every": 2}, {}),
         ("llama", "selective", {"kept": {"attention": 1, "linear": 2}}, {"ranks": 2, "accumulation": 2}),
         ("gemma3_text", "selective:attention", {"kept": {"attention": 1}}, {}), ("llama", "selective:linear/3,attention", {"kept": {"attention": 1, "linear": 3}}, {}),
         ("gpt2", "selective:linear", {"kept": {"linear": 1}}, {"loss": "chunked:3"})]


def reference_of(case, place, change):
    model = model_of(case, place)
    change(model)
    return reference.train(model, batches(case, place.data, STEPS.steps), STEPS)


def again(flops, case, place, change):
    """FLOPs that checkpoints add to a step."""
    return flops(case, place, change) - flops(replace(case, checkpointing="none"), place, lambda _: None)


def checkpoints():
    ok, places = True, {}
    for family, checkpointing, how, options in CASES:
        place = places.setdefault(family, None) or Workplace(family)
        places[family] = place
        case, change = Case(family, checkpointing=checkpointing, **options), functools.partial(checkpointed, **how)
        c, _, _ = compare(case, place, STEPS, theirs=reference_of(case, place, change))
        ours, theirs = again(flops_of_engine, case, place, change), again(flops_of_torch, case, place, change)
        if ours != theirs or ours <= 0:
            c.failures.append(f"{ours} FLOPs are computed again, and {theirs} by PyTorch")
        ok &= report(case, c)
    return ok


def budgets():
    case, place, products = Case("llama", checkpointing="budget:50%"), Workplace("llama"), []
    c, _, _ = compare(case, place, STEPS, theirs=reference_of(case, place, lambda model: partitioned(model, 0.5, products)))
    if not products or not all(0 < each < PRODUCTS_OF_LAYER for each in products):
        c.failures.append(f"PyTorch's partitioner computes {products} products again")
    return report(case, c)


def cases():
    return checkpoints() & budgets()


# What the reference does instead, beside --checkpointing selective.
MISTAKES = {"again from another input": {"kept": {"attention": 1, "linear": 2}, "again_from": 1.01}, "every third product kept": {"kept": {"attention": 1, "linear": 3}},
            "attention isn't kept": {"kept": {"linear": 2}}, "every second layer": {"kept": {"attention": 1, "linear": 2}, "every": 2}}


def mistakes():
    ok, place, case = True, Workplace("llama"), Case("llama", checkpointing="selective")
    ours = place.executor(case, STEPS)
    for mistake, how in MISTAKES.items():
        change = functools.partial(checkpointed, **how)
        c, _, _ = compare(case, place, STEPS, ours=ours, theirs=reference_of(case, place, change))
        noticed = bool(c.failures) or again(flops_of_engine, case, place, change) != again(flops_of_torch, case, place, change)
        print(f"{'ok  ' if noticed else 'FAIL'} {mistake}: {c.failures[:1]}", flush=True)
        ok &= noticed
    return ok


if __name__ == "__main__":
    run_part(cases, mistakes)
