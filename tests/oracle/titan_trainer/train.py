"""torchtitan's own trainer (torchtitan.train) with a Llama of any sizes, on text and with a tokenizer that are made here; reports what the caching allocator saw.

Usage: train.py JSON [FLAGS OF TORCHTITAN]. JSON has the sizes (dims.py), `steps`, and `events`, a file for every allocation and free. Prints one JSON object:

    {"steps": [{"peak_allocated", "peak_reserved", ...}, ...]}
"""

import json
import pathlib
import sys
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from dims import Dims  # noqa: E402
from event_log import EventLog, peaks  # noqa: E402

WORDS = 50


def make_assets(folder, sequence):
    """A tokenizer of few words, and a file of text that is longer than two rows."""
    words = [f"w{number}" for number in range(WORDS)]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *words])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}), encoding="utf-8")
    (folder / "data").mkdir()
    text = " ".join(words[number % WORDS] for number in range(2 * sequence))
    (folder / "data" / "train.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")


def sizes(dims):
    """torchtitan's arguments of a Llama with just these sizes: its feed-forward width is rounded up to a multiple of dims.ffn."""
    from torchtitan.models.llama3.model.args import TransformerModelArgs

    small = dims.ffn / (8 * dims.hidden)
    return TransformerModelArgs(dim=dims.hidden, n_layers=dims.layers, n_heads=dims.heads, n_kv_heads=dims.kv_heads, vocab_size=dims.vocabulary,
                                multiple_of=dims.ffn, ffn_dim_multiplier=small, rope_theta=500000)


def run(dims, steps, events):
    from torchtitan.models.llama3 import llama3_args
    from torchtitan.train import Trainer, main

    llama3_args["debugmodel"] = sizes(dims)

    class Told(Trainer):
        def __init__(self, *arguments):
            self.log = EventLog() if events else None
            if self.log:
                self.log.mark("load")
            self.peaks = []
            super().__init__(*arguments)

        def train_step(self, data_iterator):
            if self.log:
                self.log.mark(f"step {self.step}")
            torch.cuda.reset_peak_memory_stats()
            super().train_step(data_iterator)
            self.peaks.append(peaks())
            if self.log:
                self.log.mark("end")
            if self.log and self.step == steps:
                self.log.write(events)

        def close(self):
            print(json.dumps({"steps": self.peaks}), flush=True)
            super().close()

    main(Told)


if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    dims = Dims(**{name: case[name] for name in vars(Dims())})
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_assets(folder, dims.sequence)
        sys.argv[1:] = ["--model.name", "llama3", "--model.flavor", "debugmodel", "--model.hf_assets_path", name, "--training.dataset", "c4_test",
                        "--training.dataset_path", str(folder / "data"), "--training.seq_len", str(dims.sequence), "--training.steps", str(case["steps"]),
                        "--metrics.log_freq", "1000", "--job.dump_folder", name, *sys.argv[2:]]
        run(dims, case["steps"], case.get("events"))
