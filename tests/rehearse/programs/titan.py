"""torchtitan's own main with its smallest Llama, on a data set and with a tokenizer that are made here. Usage: titan.py [FLAGS OF TORCHTITAN]"""
import json
import os
import sys
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from tiny import say_held


def assets():
    folder = tempfile.mkdtemp()
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, 2000)}}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"bos_token": "<s>", "eos_token": "</s>"}, file)
    draw = torch.Generator().manual_seed(0)
    data = os.path.join(folder, "data")
    os.mkdir(data)
    with open(os.path.join(data, "train.jsonl"), "w", encoding="utf-8") as file:
        for _ in range(200):
            text = " ".join(f"w{number}" for number in torch.randint(3, 2000, (400,), generator=draw).tolist())
            file.write(json.dumps({"text": text}) + "\n")
    return folder, data


def run():
    from torchtitan.train import Trainer, main  # reads the flags when it is imported

    class Told(Trainer):
        def close(self):
            say_held()
            super().close()

    main(Told)


if __name__ == "__main__":
    folder, data = assets()
    sys.argv[1:] = ["--model.name", "llama3", "--model.flavor", "debugmodel", "--model.hf_assets_path", folder, "--training.dataset", "c4_test",
                    "--training.dataset_path", data, "--training.local_batch_size", "4", "--training.seq_len", "512", "--training.steps", "3",
                    "--job.dump_folder", folder, *sys.argv[1:]]
    run()
