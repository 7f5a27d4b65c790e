"""What `--checkpointing budget:N%` computes again, beside torch.compile's partitioner with an activation_memory_budget, at the same bytes kept.

Both are asked about a layer of Llama-3.1-8B in bf16 on 4096 tokens. PyTorch traces it on tensors without memory; FLOPs are those of products and of causal attention.
"""

import json
import os
import pathlib
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from torch._functorch import config
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry, register_flop_formula

from program_flops import flops_of_step

VRAMFIT = pathlib.Path(os.environ.get("VRAMFIT_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin"), "vramfit")
HIDDEN, HEADS, KV_HEADS, HEAD, FFN, TOKENS = 4096, 32, 8, 128, 14336, 4096
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
         "num_key_value_heads": KV_HEADS, "vocab_size": 1024, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False}
BUDGETS = (0.75, 0.6, 0.5, 0.4, 0.3, 0.25, 0.15, 0)
MIB = 1 << 20
# PyTorch takes kernels that only move memory for free, as they become part of others; the engine's are kernels of their own and count. So the engine may compute a little more of the products again.
MOST_BEYOND = 1.1
VIEWS = {"t", "detach", "view", "transpose", "unsqueeze", "expand", "reshape", "_unsafe_view"}


@register_flop_formula(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)
def causal_attention(q, k, *_, **__):
    return 2 * q[0] * q[1] * q[2] * k[2] * q[3]


def norm(x, weight):
    return F.rms_norm(x, (HIDDEN,), weight, 1e-5)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def layer(x, norm1, wq, wk, wv, wo, norm2, gate, up, down, cos, sin):
    h = norm(x, norm1)
    q, k, v = (F.linear(h, w).view(1, TOKENS, -1, HEAD).transpose(1, 2) for w in (wq, wk, wv))
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(attention.transpose(1, 2).reshape(1, TOKENS, HIDDEN), wo)
    h = norm(x, norm2)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def flops(graph):
    total = 0
    for node in graph.graph.nodes:
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if formula is not None and "backward" not in str(node.target):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda of: of.meta["val"])
            total += formula(*args, **kwargs, out_val=node.meta["val"])
    return total


def storage_of(node):
    """What a node is a view of."""
    while getattr(node.target, "_opname", "") in VIEWS:
        node = node.args[0]
    return node


def partitioned(budget):
    """Bytes that PyTorch keeps of the layer besides its input and parameters, and FLOPs of its backward."""
    found = {}

    def partition(joint, inputs, **arguments):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **arguments)
        outputs = next(node for node in forward.graph.nodes if node.op == "output").args[0]
        kept = {storage_of(node) for node in outputs[arguments["num_fwd_outputs"]:] if isinstance(node, torch.fx.Node)}
        values = [node.meta["val"] for node in kept if node.op == "call_function"]
        found.update(kept=sum(value.numel() * value.element_size() for value in values), flops=flops(backward))
        return forward, backward

    def empty(*shape, trained=True):
        return torch.empty(*shape, dtype=torch.bfloat16, requires_grad=trained)

    with config.patch(activation_memory_budget=budget), FakeTensorMode():
        weights = [empty(HIDDEN), empty(HIDDEN, HIDDEN), empty(KV_HEADS * HEAD, HIDDEN), empty(KV_HEADS * HEAD, HIDDEN), empty(HIDDEN, HIDDEN), empty(HIDDEN),
                   empty(FFN, HIDDEN), empty(FFN, HIDDEN), empty(HIDDEN, FFN), empty(TOKENS, HEAD, trained=False), empty(TOKENS, HEAD, trained=False)]
        compiler = lambda graph, _: make_boxed_func(graph.forward)  # noqa: E731
        aot_function(layer, fw_compiler=compiler, bw_compiler=compiler, partition_fn=partition)(empty(1, TOKENS, HIDDEN), *weights).sum().backward()
    return found["kept"], found["flops"]


def vramfit(command, layers, checkpointing, *flags):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps({**MODEL, "num_hidden_layers": layers}), encoding="utf-8")
        return subprocess.run([VRAMFIT, command, path, "--gpus", "1xH100-80GB", "--stack", "vramfit", "--seq-len", str(TOKENS), "--precision", "bf16-pure", "--checkpointing", checkpointing, *flags],
                              capture_output=True, text=True, check=True).stdout


def step_flops(layers, checkpointing):
    return flops_of_step(vramfit("program", layers, checkpointing))


def live_at_loss(layers, checkpointing):
    phases = json.loads(vramfit("estimate", layers, checkpointing, "--json"))["ranks"][0]["phases"]
    return next(phase["peak_allocated_bytes"] for phase in phases if phase["phase"] == "loss")


def of_a_layer(figure, checkpointing):
    return figure(3, checkpointing) - figure(2, checkpointing)


def main():
    input_alone, all_kept = (of_a_layer(live_at_loss, how) for how in ("full", "none"))
    computed_once = of_a_layer(step_flops, "none")
    _, backward = partitioned(1)
    failures = []
    print("| PyTorch's budget | it keeps, MiB | and computes again, TFLOP | vramfit's budget | it keeps | and computes again |\n|-|-|-|-|-|-|")
    for budget in BUDGETS:
        kept, total = partitioned(budget)
        percent = -(-100 * kept // (all_kept - input_alone))
        ours = f"budget:{percent}%" if percent > 0 else "full"
        bytes_kept = of_a_layer(live_at_loss, ours) - input_alone
        again, theirs = of_a_layer(step_flops, ours) - computed_once, total - backward
        print(f"| {budget} | {kept / MIB:.1f} | {theirs / 1e12:.3f} | {ours} | {bytes_kept / MIB:.1f} | {again / 1e12:.3f} |")
        if bytes_kept > kept + (all_kept - input_alone) / 100 or again > MOST_BEYOND * theirs:
            failures.append(f"{ours}: {bytes_kept} bytes, {again} FLOPs beside {kept} and {theirs}")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
