"""Says whether the graphs mean what the models do: an interpreter of the op list, in plain PyTorch and fp64, gives the
loss and every gradient that transformers' model of the same config.json and weights gives.

The interpreter follows the comments of model_specs/graph.h alone. Nothing of the executor is involved.
"""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402

BATCH, SEQUENCE = 2, 24
# transformers computes norms and rotary angles in fp32 whatever the weights are.
LOSS, GRADIENT = 1e-6, 1e-5
ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
}


def rope_tables(rope):
    """cos and sin [S, dims / 2]; llama3's smoothing as published with Llama 3.1."""
    dims = rope["dims"]
    frequency = 1.0 / rope["theta"] ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims)
    if rope["linear"]:
        frequency = frequency / rope["factor"]
    if rope["llama3"]:
        wavelength = 2 * math.pi / frequency
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (rope["original"] / wavelength - low) / (high - low)
        between = (1 - smooth) * frequency / rope["factor"] + smooth * frequency
        frequency = torch.where(
            wavelength > rope["original"] / low,
            frequency / rope["factor"],
            torch.where(wavelength < rope["original"] / high, frequency, between),
        )
    angles = torch.arange(SEQUENCE, dtype=torch.float32)[:, None] * frequency
    return angles.cos().double(), angles.sin().double()


class Interpreter:
    """Runs one graph forward; autograd makes the gradients."""

    def __init__(self, graph, weights):
        self.graph = graph
        self.weights = [weights[name] for name in graph["parameters"]]
        self.tables = [rope_tables(rope) for rope in graph["ropes"]]

    def loss(self, ids, labels):
        """Mean over labels that aren't -100. ids, labels: [batch * sequence]."""
        value = ids
        for segment in self.graph["segments"]:
            values = {0: value, segment["labels"]: labels}
            for op in segment["ops"]:
                inputs = [values[i] for i in op["inputs"]]
                outputs = getattr(self, op["kind"])(op, *inputs)
                values[op["outputs"][0]] = outputs
            value = values[segment["output"]]
        return value

    def parameter(self, op, i):
        """The used slice of the i-th parameter of an op."""
        index, first, count = op["parameters"][i]
        weight = self.weights[index]
        if count < 0:
            return weight
        dim = 1 if op["transposed_weight"] and weight.dim() == 2 else 0
        return weight.narrow(dim, first, count)

    def embedding(self, op, ids):
        return F.embedding(ids, self.parameter(op, 0)) * op["scale"]

    def position_embedding(self, op, x):
        return x + self.parameter(op, 0)[:SEQUENCE].repeat(BATCH, 1)

    def type_embedding(self, op, x):
        return x + self.parameter(op, 0)[0]

    def rms_norm(self, op, x):
        weight = self.parameter(op, 0) + (1 if op["weight_plus_one"] else 0)
        rows = x.view(x.shape[0], op["groups"], -1)
        rows = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + op["eps"])
        return (rows * weight).view_as(x)

    def layer_norm(self, op, x):
        return F.layer_norm(x, x.shape[-1:], self.parameter(op, 0), self.parameter(op, 1), op["eps"])

    def linear(self, op, x):
        weight = self.parameter(op, 0)
        y = x @ (weight if op["transposed_weight"] else weight.T)
        return y + self.parameter(op, 1) if len(op["parameters"]) == 2 else y

    def rope(self, op, x):
        cos, sin = self.tables[op["rope_table"]]
        half = cos.shape[1]
        rows = x.view(BATCH, SEQUENCE, op["heads"], op["head_dim"])
        a, b, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).reshape(x.shape)

    def attention(self, op, q, k, v):
        def heads(x, count):
            return x.view(BATCH, SEQUENCE, count, op["head_dim"]).transpose(1, 2)

        groups = op["heads"] // op["kv_heads"]
        k, v = (heads(x, op["kv_heads"]).repeat_interleave(groups, 1) for x in (k, v))
        scores = heads(q, op["heads"]) @ k.transpose(2, 3) * op["scale"]
        if op["softcap"]:
            scores = op["softcap"] * torch.tanh(scores / op["softcap"])
        distance = torch.arange(SEQUENCE)[:, None] - torch.arange(SEQUENCE)
        hidden = (distance < 0) if op["causal"] else torch.zeros_like(distance, dtype=torch.bool)
        if op["window"]:
            hidden = hidden | (distance >= op["window"])
        out = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return out.transpose(1, 2).reshape(q.shape)

    def glu(self, op, gate, up):
        return ACTIVATIONS[op["activation"]](gate) * up

    def activation(self, op, x):
        return ACTIVATIONS[op["activation"]](x)

    def add(self, op, x, f):
        return x + f

    def scale(self, op, x):
        return op["scale"] * x

    def softcap(self, op, x):
        return op["softcap"] * torch.tanh(x / op["softcap"])

    def cross_entropy(self, op, logits, labels):
        return F.cross_entropy(logits, labels, ignore_index=-100)

    def linear_cross_entropy(self, op, x, labels):
        logits = self.linear({**op, "transposed_weight": False}, x)
        return self.cross_entropy(op, self.softcap(op, logits) if op["softcap"] else logits, labels)


def reference(config, seed):
    """transformers' model in fp64 with eager attention; every parameter random, so that none is without effect."""
    settings = transformers.AutoConfig.for_model(**{k: v for k, v in config.items() if k != "architectures"})
    settings._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, config["architectures"][0])(settings).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model


def compare(program, config, seed, mutate=lambda op: None):
    """None, or what differs. Both losses and all gradients, with whole and with chunked loss. `mutate` may change ops."""
    model = reference(config, seed)
    weights = dict(model.named_parameters())
    # Without id 0: where it is the padding token, transformers leaves its row of the embedding untrained.
    ids = torch.randint(1, config["vocab_size"], (BATCH, SEQUENCE))
    masked = config["model_type"] == "bert"
    labels = torch.where(torch.rand(BATCH, SEQUENCE) < 0.4, ids if masked else ids.roll(-1, 1), -100)
    logits = model(input_ids=ids).logits
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    gradients = torch.autograd.grad(expected, list(weights.values()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        for chunks in ("0", "4"):
            graph = json.loads(subprocess.run([program, path, chunks], check=True, capture_output=True).stdout)
            for op in (op for segment in graph["segments"] for op in segment["ops"]):
                mutate(op)
            got = Interpreter(graph, weights).loss(ids.flatten(), labels.flatten())
            found = torch.autograd.grad(got, list(weights.values()), allow_unused=True)
            if not torch.allclose(got, expected, rtol=LOSS, atol=0):
                return f"chunks {chunks}: loss {got.item()}, transformers {expected.item()}"
            for name, a, b in zip(weights, found, gradients):
                # bert's key biases have a gradient of zero: softmax doesn't see them.
                if a is None or (a - b).norm() > GRADIENT * b.norm() + 1e-9:
                    off = "missing" if a is None else f"{((a - b).norm() / b.norm()).item():.1e} off"
                    return f"chunks {chunks}: gradient of {name}: {off}"
    return None


def variants():
    """(label, config): the small models, and what they don't ask for."""
    folder = Path(os.environ["VRAMFIT_SOURCE_DIR"]) / "tests" / "models"
    base = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    yield from base.items()
    changes = {
        "llama": [
            {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_scaling": None},
            {"rope_scaling": {"type": "linear", "factor": 3.0}, "hidden_act": "gelu"},
            {"head_dim": 24, "num_key_value_heads": 4},
        ],
        "mistral": [{"sliding_window": None}, {"sliding_window": 1}],
        "qwen2": [{"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}],
        "qwen3": [{"attention_bias": True, "tie_word_embeddings": False}],
        "gemma": [{"attention_bias": True, "tie_word_embeddings": False}],
        "gemma2": [{"final_logit_softcapping": None, "attn_logit_softcapping": None}],
        "gemma3_text": [
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "final_logit_softcapping": 2.0},
            {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]},
        ],
        "phi3": [{"partial_rotary_factor": 0.5, "sliding_window": 7}],
        "granite": [{"embedding_multiplier": 1, "logits_scaling": 16.0, "tie_word_embeddings": False, "mlp_bias": True}],
        "gpt2": [{"n_inner": 80, "activation_function": "relu", "tie_word_embeddings": False, "scale_attn_weights": False}],
        "bert": [{"hidden_act": "gelu_new", "type_vocab_size": 1}],
    }
    for name, lists in changes.items():
        for change in lists:
            yield f"{name} {change}", {**base[name], **change}


def set_all(key, change):
    """A mutation: changes `key` of every op that has it set."""

    def mutate(op):
        if op[key] and not (key == "scale" and op["kind"] not in ("attention", "embedding")):
            op[key] = change(op[key])

    return mutate


# Mistakes that the comparison must see, on the small gemma2, which has all of these.
MUTATIONS = {
    "scale": set_all("scale", lambda x: x * 1.01),
    "window": set_all("window", lambda x: x + 1),
    "softcap": set_all("softcap", lambda x: x * 1.1),
    "eps": set_all("eps", lambda x: x + 0.01),
    "causal": set_all("causal", lambda x: False),
    "weight_plus_one": set_all("weight_plus_one", lambda x: False),
}


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    program = Path(os.environ["VRAMFIT_BIN_DIR"]) / "dump_graph"
    failures = 0
    for label, config in variants():
        wrong = compare(program, config, seed)
        failures += wrong is not None
        print(f"{'FAILED' if wrong else 'equal '} {label}" + (f": {wrong}" if wrong else ""))
        if label == "gemma2":
            for name, mutate in MUTATIONS.items():
                try:
                    seen = compare(program, config, seed, mutate) is not None
                except RuntimeError:  # shapes that don't fit
                    seen = True
                failures += not seen
                print(f"{'seen  ' if seen else 'FAILED'} mutation {name}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
