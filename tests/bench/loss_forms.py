"""Training steps on CPU with each form of the loss, in turns on one machine. Prints seconds per step, and the median of the ratios
to the step with full loss of the same round. The model is one whose head is a large share of it. Figures, not a test.

    VRAMFIT_BIN_DIR=build/release/bin .venv/bin/python tests/bench/loss_forms.py [ROUNDS]"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# The widths of SmolLM2-135M with two layers and half of its vocabulary: the head is two thirds of the parameters that a token meets.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 24576, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}
SEQUENCE, STEPS = 1024, 3   # timed steps, after a first that isn't
TERMS = ("--label-smoothing", "0.1", "--z-loss", "1e-4")
FORMS = {"full": ("full",), "chunked:4": ("chunked:4",), "chunked-forward:4": ("chunked-forward:4",),
         "full, all terms": ("full", *TERMS), "chunked-forward:4, all terms": ("chunked-forward:4", *TERMS)}


def seconds_of(config, precision, loss, directory):
    """Mean of the timed steps of one run."""
    output = os.path.join(directory, "run.json")
    command = [os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit"), "run", config, "--gpus", "1xcpu-8GiB", "--precision", precision, "--seq-len", str(SEQUENCE),
               "--micro-batch", "1", "--checkpointing", "none", "--steps", str(1 + STEPS), "-o", output, "--loss", *loss]
    subprocess.run(command, check=True, capture_output=True)
    return statistics.mean(json.loads(pathlib.Path(output).read_text(encoding="utf-8"))["step_seconds"][1:])


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory(prefix="vramfit-bench-") as directory:
        config = os.path.join(directory, "config.json")
        pathlib.Path(config).write_text(json.dumps(CONFIG), encoding="utf-8")
        print("| precision | loss | seconds per step | to full loss, median | lowest to highest |\n" + "|-" * 5 + "|")
        for precision in ("fp32", "bf16-mixed"):
            measured = {form: [] for form in FORMS}
            for number in range(rounds):
                for form in sorted(FORMS, reverse=number % 2 == 1):
                    measured[form].append(seconds_of(config, precision, FORMS[form], directory))
            for form, seconds in measured.items():
                ratios = [a / b for a, b in zip(seconds, measured["full"])]
                print(f"| {precision} | {form} | {statistics.median(seconds):.3f} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    main()
