"""FSDP2 and DDP over Gloo: four Python processes that train one job after the other, the reference of fsdp2_parity.py.

Only the order of the rows and the scale of the loss are this project's: sharding, wrapping, casts, reduction, clipping and
AdamW are PyTorch's own. Both average gradients over ranks, so each rank's loss is multiplied by their number; the average is then
the sum over all label tokens of the global batch divided by their number.
"""

import copy
import ctypes
import datetime
import fnmatch
import functools
import io
import multiprocessing
import os
import signal
import sys
import traceback
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import _recursive_wrap, size_based_auto_wrap_policy
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import executor
import reference

RANKS = 4
LOSS_SCALE = 1024.0   # fp16: nothing overflows (fp16_parity.py has what does)
COMPUTE = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}
PR_SET_PDEATHSIG = 1   # prctl(2): the ranks end with the process that started them, however it ends
MESHES = {(1, 1): [[0]], (1, 2): [[0, 1]], (1, 4): [[0, 1, 2, 3]], (2, 1): [[0], [1]], (2, 2): [[0, 1], [2, 3]], (4, 1): [[0], [1], [2], [3]]}


@dataclass(frozen=True)
class PyTorchRun:
    """A job in FSDP2's terms; choices that PyTorch doesn't have are left out, so that jobs share runs."""

    family: str
    mesh: tuple               # (replicate, shard)
    ddp: bool
    reshard: str              # of --reshard; "" for DDP
    wrap: str                 # of --wrap; "" for DDP
    embeddings: bool          # units of their own
    forward_prefetch: int
    precision: str
    micro_batches: int
    reduce_once: bool         # gradients meet in the last micro-batch only
    frozen: tuple
    mistake: str = ""         # a deliberate one, of MISTAKES or SMALL_MISTAKES

    @property
    def ranks(self):
        return self.mesh[0] * self.mesh[1]


MISTAKES = ("a frozen parameter trained", "gradients averaged over micro-batches", "a rank's gradient lost", "replicas not summed",
            "gradients summed over half of the rows", "one update less")
SMALL_MISTAKES = ("weight decay 10 % off", "clip 10 % off", "beta2 5 % off", "learning rate 1 % off")   # below the noise of 16 bits


def pytorch_run(job):
    run = PyTorchRun(family=job.family, mesh=job.mesh, ddp=job.sharding == "no-shard", reshard="", wrap="", embeddings=False, forward_prefetch=0,
                     precision=job.precision, micro_batches=job.micro_batches, reduce_once=job.accumulate == "unsharded", frozen=job.frozen)
    if run.ddp:
        return run
    run = replace(run, reshard="never" if job.reshard == "-" else job.reshard, wrap=job.wrap_flag)
    if not job.wrap.startswith("layer"):
        return run
    run = replace(run, embeddings=job.embeddings == "on")
    if job.wrap != "layer":
        return run
    return replace(run, forward_prefetch=int(job.prefetch.split("forward=")[1].split(",")[0]))


def exact_run(job):
    """The same training in fp32 on one rank: what errors of 16 bits are measured against."""
    return PyTorchRun(family=job.family, mesh=(1, 1), ddp=True, reshard="", wrap="", embeddings=False, forward_prefetch=0, precision="fp32",
                      micro_batches=job.micro_batches, reduce_once=False, frozen=job.frozen)


def freeze(model, run):
    for name, p in model.named_parameters():
        if any(fnmatch.fnmatchcase(name, glob) for glob in run.frozen):
            p.requires_grad_(run.mistake == "a frozen parameter trained")


class Cast(torch.nn.Module):
    """fp32 parameters computed with in another dtype, as FSDP2's param_dtype does; DDP reduces the fp32 gradients."""

    def __init__(self, model, dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, **inputs):
        cast = {name: p.to(self.dtype) for name, p in self.model.named_parameters()}
        return torch.func.functional_call(self.model, cast, kwargs=inputs)


def parts(model):
    """(blocks, embedding modules, head modules) of a transformers model."""
    body = model.model if hasattr(model, "model") else model.transformer
    if hasattr(body, "h"):
        return body.h, [body.wte, body.wpe], [body.ln_f, model.lm_head]
    return body.layers, [body.embed_tokens], [body.norm, model.lm_head]


def units_by_size(model, least):
    """FSDP's own policy, which says by calling back."""
    found = []
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=least)
    _recursive_wrap(model, policy, lambda module: found.append(module) or module, set(), set(), only_wrap_children=True)
    return found


def units_by_pattern(model, globs):
    """The outermost modules that match, the innermost of several patterns' first."""
    found = {}
    for glob in globs:
        matched = [name for name, _ in model.named_modules() if name and fnmatch.fnmatchcase(name, glob)]
        found.update((name, model.get_submodule(name)) for name in matched if not any(name.startswith(other + ".") for other in matched))
    return [found[name] for name in sorted(found, key=lambda name: -name.count("."))]


def units(model, run):
    """Modules, or lists of them, to shard: inner ones first. A tied weight stays with the root, as FSDP2 shares no parameter between groups."""
    blocks, embedding, head = parts(model)
    kind, _, value = run.wrap.partition(":")
    ends = (embedding, head) if run.embeddings else ()
    if kind == "layer":
        found = [*blocks, *ends]
    elif kind == "layers":
        found = [*(list(blocks[i:i + int(value)]) for i in range(0, len(blocks), int(value))), *ends]
    elif kind == "size":
        found = units_by_size(model, int(value))
    else:
        found = units_by_pattern(model, value.split(",")) if kind == "pattern" else []
    tied = model.get_input_embeddings().weight
    if tied is not model.get_output_embeddings().weight:
        return found
    return [unit for unit in found if all(p is not tied for module in (unit if isinstance(unit, list) else [unit]) for p in module.parameters())]


def shard(model, run, mesh):
    compute = COMPUTE.get(run.precision)
    mixed = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32) if compute else MixedPrecisionPolicy()
    replicas = run.mesh[0] > 1 and run.mistake != "replicas not summed"
    options = {"mesh": mesh if replicas else mesh["shard"], "mp_policy": mixed}
    reshard = int(run.reshard) if run.reshard.isdigit() else run.reshard != "never"
    blocks, found = parts(model)[0], units(model, run)
    for unit in found:
        kept = run.reshard == "last-kept" and any(module is blocks[-1] for module in (unit if isinstance(unit, list) else [unit]))
        fully_shard(unit, reshard_after_forward=reshard and not kept, **options)
    fully_shard(model, reshard_after_forward=run.reshard == "always", **options)
    if run.forward_prefetch > 0:
        inner = [unit for unit in found if unit in blocks]
        for i, block in enumerate(inner):
            block.set_modules_to_forward_prefetch(inner[i + 1 : i + 1 + run.forward_prefetch])
    return model


def replicate(model, run, mesh):
    compute = COMPUTE.get(run.precision)
    wrapped = Cast(model, compute) if compute else model
    return DistributedDataParallel(wrapped, process_group=mesh.get_group("replicate"))


def whole(tensor):
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return tensor.detach().float().clone()


def summed_over(group, number):
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total, group=group)
    return float(total)


def gathered(group, tensor):
    """Ranks' tensors one after the other along dim 0."""
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tensors, tensor.contiguous(), group=group)
    return torch.cat(tensors)


class Training:
    """One run on this rank."""

    def __init__(self, run, hyper, template, mesh, group, rank):
        self.run, self.hyper, self.group, self.rank = run, hyper, group, rank
        model = copy.deepcopy(template)
        if run.precision == "bf16-pure":
            model.to(torch.bfloat16)
        freeze(model, run)
        self.model, self.plain = (replicate if run.ddp else shard)(model, run, mesh), model
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        decay = hyper.weight_decay * (0.9 if run.mistake == "weight decay 10 % off" else 1)
        beta2 = hyper.beta2 * (0.95 if run.mistake == "beta2 5 % off" else 1)
        # The fused kernel computes in fp32 what 16-bit parameters need; in fp32 the plain loop is the simplest there is.
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=hyper.lr, betas=(hyper.beta1, beta2), eps=hyper.eps,
                                           weight_decay=decay, foreach=False, fused=run.precision == "bf16-pure")
        # The mean over ranks divides what the loss was multiplied by, so that activations' gradients are scaled by LOSS_SCALE here too.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=LOSS_SCALE / run.ranks, enabled=run.precision == "fp16-mixed")

    def own(self, rows):
        each = rows.shape[0] // self.run.ranks
        return rows[self.rank * each : (self.rank + 1) * each]

    def scale(self, batches):
        labels = sum(int((labels != reference.IGNORE_INDEX).sum()) for _, labels in batches)
        mistake = self.run.mistake
        scale = self.run.ranks / labels
        if mistake == "gradients averaged over micro-batches":
            scale /= self.run.micro_batches
        if mistake == "a rank's gradient lost" and self.rank == self.run.ranks - 1:
            scale = 0.0
        return scale

    def set_reducing(self, on):
        if self.run.ddp:
            self.model.require_backward_grad_sync = on   # what no_sync() sets
        else:
            self.model.set_requires_gradient_sync(on)

    def accumulate(self, batches):
        """Summed gradients of the step; returns its loss and the logits of its first micro-batch."""
        loss_sum, first = 0.0, None
        scale = self.scale(batches)
        for i, (ids, labels) in enumerate(batches):
            self.set_reducing(not self.run.reduce_once or i + 1 == len(batches))
            logits = self.model(input_ids=self.own(ids), use_cache=False).logits
            loss = reference.loss_of(logits, self.own(labels), scale)
            self.scaler.scale(loss).backward()
            loss_sum += float(loss.detach().double()) / self.run.ranks
            first = logits.detach().float() if first is None else first
            if self.run.mistake == "gradients summed over half of the rows":
                break
        return summed_over(self.group, loss_sum), gathered(self.group, first)

    def train(self, batches_of_step):
        hyper = self.hyper
        trace = reference.Trace([], None, None, None)
        for step in range(1, hyper.steps + 1):
            loss, logits = self.accumulate(batches_of_step(step))
            self.scaler.unscale_(self.optimizer)
            trace.losses.append(loss)
            if step == 1:
                trace.logits, trace.gradients = logits, {name: whole(p.grad) for name, p in self.trained.items()}
            clip = hyper.clip * (1.1 if self.run.mistake == "clip 10 % off" else 1)
            torch.nn.utils.clip_grad_norm_(list(self.trained.values()), clip)
            rate = reference.learning_rate(hyper, step) * (1.01 if self.run.mistake == "learning rate 1 % off" else 1)
            self.optimizer.param_groups[0]["lr"] = rate
            if self.run.mistake != "one update less" or step < hyper.steps:
                self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        trace.parameters = {name: whole(p) for name, p in self.plain.named_parameters()}
        return trace


def case_of(run, sequence):
    rows = executor.Case("").global_rows * 2   # rows of a micro-batch on all ranks together, whatever their number
    return executor.Case(run.family, ranks=run.ranks, micro_batch=rows // run.ranks, accumulation=run.micro_batches, sequence=sequence)


class Ranks:
    """Four forks of this process, which has PyTorch and transformers loaded. They train `runs` in order; take() gives the traces."""

    def __init__(self, runs, hyper, places, sequence, directory):
        context = multiprocessing.get_context("fork")
        self.receiver, sender = context.Pipe(duplex=False)
        self.templates = {family: reference.build(executor.model_path(family), place.state) for family, place in places.items()}
        self.batches = {}
        for run in runs:
            key = run.family, run.micro_batches
            if key not in self.batches:
                self.batches[key] = executor.batches(case_of(run, sequence), places[run.family].data, hyper.steps)
        self.runs, self.hyper, self.directory = runs, hyper, directory
        self.all_done = context.Barrier(RANKS)
        self.processes = [context.Process(target=self._life, args=(rank, sender), daemon=True) for rank in range(RANKS)]
        for process in self.processes:
            process.start()
        sender.close()

    def _life(self, rank, sender):
        run = None
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # A fork makes PyTorch's thread pool anew when it is first used; two threads doing that at once abort ("Invalid thread pool!").
            torch.set_num_threads(1)
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            os.environ["TORCH_FR_BUFFER_SIZE"] = "0"   # the recorder of collectives is no part of the comparison
            if rank != 0:
                sender.close()
            # A rank with nothing to do waits for the others' runs, however many there are.
            dist.init_process_group("gloo", init_method=f"file://{self.directory}/ranks", rank=rank, world_size=RANKS,
                                    timeout=datetime.timedelta(days=1))
            meshes = {key: DeviceMesh("cpu", table, mesh_dim_names=("replicate", "shard")) for key, table in MESHES.items()}
            groups = {count: dist.new_group(list(range(count))) for count in (1, 2, 4)}
            for run in self.runs:
                if rank >= run.ranks:
                    continue
                training = Training(run, self.hyper, self.templates[run.family], meshes[run.mesh], groups[run.ranks], rank)
                trace = training.train(self.batches[run.family, run.micro_batches])
                if rank == 0:
                    buffer = io.BytesIO()
                    torch.save(trace, buffer)
                    sender.send_bytes(buffer.getvalue())
            self.all_done.wait()   # a rank that leaves closes connections that the others may still read from
            os._exit(0)
        except BaseException:   # whatever it is, the others must not wait for this rank
            print(f"rank {rank}, {run}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            os._exit(1)

    def take(self):
        """The trace of the next run."""
        try:
            return torch.load(io.BytesIO(self.receiver.recv_bytes()), weights_only=False)
        except EOFError:
            for process in self.processes:
                process.join(timeout=10)
            raise AssertionError(f"PyTorch's ranks ended with {[process.exitcode for process in self.processes]}") from None

    def close(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
