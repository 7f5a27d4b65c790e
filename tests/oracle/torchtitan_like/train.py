"""Trains a Llama 3 the way torchtitan did in December 2024, or on one GPU without FSDP2, and reports what the caching allocator saw.

Public PyTorch only. One process plays one rank; its process group lives in a HashStore, so collectives must answer
without peers: it is meant for a phantom GPU, where they do. Prints one JSON object:

    {"steps": [{"peak_allocated", "peak_reserved", "peak_requested", "peak_active", "retries"}, ...], "load": {...}, ...}

`--events FILE` writes every allocation and free with size, stream and step, one JSON array a line.
"""

import argparse
import gc
import json
import pathlib
import sys
from collections import defaultdict

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from model import Date, Transformer
from offload import offload_activations

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from dims import Dims  # noqa: E402
from event_log import EventLog, peaks  # noqa: E402

MATMUL = torch.ops.aten.mm.default
KEPT = {MATMUL, torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default}
# Whether a block, told whether it is the last, and the root release their gathered parameters after forward.
RESHARDED = {"default": (lambda last: True, False), "last-kept": (lambda last: not last, False),
             "always": (lambda last: True, True), "never": (lambda last: False, False)}


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, default in vars(Dims()).items():
        parser.add_argument("--" + field.replace("_", "-"), type=int, default=default)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--runtime", choices=["fsdp2", "plain"], default="fsdp2", help="plain: one GPU")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of everything, with --runtime plain")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step, with --runtime plain")
    parser.add_argument("--ranks", type=int, default=8, help="of one replica: the shards")
    parser.add_argument("--replicas", type=int, default=1, help="more than 1: hybrid sharding")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--reshard", choices=list(RESHARDED), default="last-kept",
                        help="default: all units but the root; last-kept: nor the last block; always: all; never: none")
    parser.add_argument("--checkpointing", default="selective", help="none, selective, full or every:N blocks")
    parser.add_argument("--optimizer", choices=["foreach", "fused", "loop"], default="foreach")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--attention", choices=["flash", "efficient"], default="flash")
    parser.add_argument("--wrap", choices=["root", "ends"], default="root",
                        help="root: embedding, norm and output belong to the root; ends: units of their own (2025)")
    parser.add_argument("--layers-of-unit", type=int, default=1, help="so many blocks are one unit (a list given to fully_shard)")
    parser.add_argument("--loss", default="full", help="full, or chunked:N parts of the sequence (2025)")
    parser.add_argument("--float-output", action="store_true", help="the model makes its logits float32 (until July 2024)")
    parser.add_argument("--keep-logits", action="store_true", help="they live until the next step's are there (until June 2024)")
    parser.add_argument("--fused-norm", action="store_true", help="torch.nn.RMSNorm (2025)")
    parser.add_argument("--offload-activations", action="store_true", help="the large ones live in host memory (a draft of July 2024)")
    parser.add_argument("--events", help="file for every allocation and free")
    return parser.parse_args(arguments)


def every_second_matmul_policy():
    """Keeps attention and every other matrix product, recomputes the rest; counted apart in forward and recompute."""
    seen = defaultdict(int)

    def policy(context, function, *args, **kwargs):
        if function == MATMUL:
            seen[context.is_recompute] += 1
        kept = function in KEPT and not (function == MATMUL and seen[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpoint_blocks(model, mode):
    every = int(mode.removeprefix("every:")) if mode.startswith("every:") else 1
    for number, (name, block) in enumerate(list(model.layers.named_children()), 1):
        if mode == "none" or number % every:
            continue
        options = {"context_fn": every_second_matmul_policy} if mode == "selective" else {}
        model.layers.register_module(name, checkpoint_wrapper(block, preserve_rng_state=False, **options))


def shard(model, mesh, reshard, wrap, layers_of_unit):
    """torchtitan resharded all blocks but the last, and asked it of the root too, where PyTorch of December 2024 left the
    parameters gathered whatever was asked. Today's does what is asked, so the root is asked for what it then got."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks, root = RESHARDED[reshard]
    layers = list(model.layers.values())
    for i in range(0, len(layers), layers_of_unit):
        unit = layers[i:i + layers_of_unit]
        fully_shard(unit if layers_of_unit > 1 else unit[0], mesh=mesh, mp_policy=policy,
                    reshard_after_forward=blocks(i + layers_of_unit >= len(layers)))
    if wrap == "ends":
        fully_shard(model.tok_embeddings, mesh=mesh, mp_policy=policy, reshard_after_forward=blocks(False))
        fully_shard([model.norm, model.output], mesh=mesh, mp_policy=policy, reshard_after_forward=root)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=root)


def mesh_of(options):
    if options.replicas > 1:
        return init_device_mesh("cuda", (options.replicas, options.ranks), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh("cuda", (options.ranks,), mesh_dim_names=("shard",))


def build(options):
    dims = Dims(**{name: getattr(options, name) for name in vars(Dims())})
    is_plain = options.runtime == "plain"
    torch.set_default_dtype(getattr(torch, options.dtype) if is_plain else torch.float32)
    with torch.device("meta"):
        model = Transformer(dims, Date(float_output=options.float_output, fused_norm=options.fused_norm))
    torch.set_default_dtype(torch.float32)
    if options.checkpointing != "none":
        checkpoint_blocks(model, options.checkpointing)
    if not is_plain:
        shard(model, mesh_of(options), options.reshard, options.wrap, options.layers_of_unit)
    if options.offload_activations:
        offload_activations(list(model.layers.values()), fewest_elements=dims.ffn * dims.sequence)
    model.to_empty(device="cuda")
    model.initialize()
    model.train()
    kind = {"foreach": options.optimizer == "foreach", "fused": options.optimizer == "fused"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, **kind)
    return model, optimizer


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def loss_of(logits, labels, kind):
    if kind == "full":
        return cross_entropy(logits, labels)
    parts = int(kind.removeprefix("chunked:"))
    labels, logits = list(labels.chunk(parts, dim=1)), list(logits.chunk(parts, dim=1))
    total = 0.0
    for logits_part, labels_part in zip(logits, labels):
        total += cross_entropy(logits_part, labels_part)
    return total / parts


def clip(parameters):
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, 2.0, False, True)
    torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm, True)


def forward_and_backward(model, tokens, labels, options, held):
    logits = model(tokens)
    held[:] = [logits] if options.keep_logits else []  # lets go of those of the step before
    loss = loss_of(logits, labels, options.loss)
    del logits
    if options.accumulation > 1:
        loss = loss / options.accumulation
    loss.backward()
    return loss


def main(arguments):
    options = parse(arguments)
    gc.disable()
    torch.cuda.set_device(0)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(options.attention == "flash")
    if options.runtime == "fsdp2":
        ranks = options.ranks * options.replicas
        dist.init_process_group("nccl", store=dist.HashStore(), rank=options.rank, world_size=ranks)
    log = EventLog() if options.events else None
    if log:
        log.mark("load")
    model, optimizer = build(options)
    report = {"torch": torch.__version__, "card": torch.cuda.get_device_properties(0).name,
              "capacity": torch.cuda.get_device_properties(0).total_memory, "options": vars(options),
              "load": peaks(), "steps": []}
    shape = (options.batch, options.sequence)
    batch = (torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64))
    losses, held = [], []
    for step in range(1, options.steps + 1):
        if log:
            log.mark(f"step {step}")
        torch.cuda.reset_peak_memory_stats()
        for number in range(options.accumulation):
            tokens, labels = batch  # those of the last micro-batch live until here
            tokens, labels = tokens.to("cuda"), labels.to("cuda")
            if number == 0:
                optimizer.zero_grad()
            losses.append(forward_and_backward(model, tokens, labels, options, held))
        clip(list(model.parameters()))
        optimizer.step()
        report["steps"].append(peaks())
    if log:
        log.write(options.events)
    print(json.dumps(report))
    sys.stdout.flush()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
