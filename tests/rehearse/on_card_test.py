"""Rehearses jobs that ran on a GPU, and holds them to what was recorded of it: on_card_test.py [full]. `full`: all whose libraries are those of the tests."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent / "on_card"
VRAMFIT = os.path.abspath(os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit"))
CHEAP = "gpt2|titan-plain|layers-nested"
ALL = "(?!sft|dpo|grpo|reward|taken).*"  # TRL has an environment of its own; the rest of a GPU that is taken was not recorded


def main():
    is_full = sys.argv[1:] == ["full"]
    with tempfile.TemporaryDirectory(prefix="vramfit-on-card-") as place:
        jobs = ["--only", ALL if is_full else CHEAP, "--jobs", "2"]
        subprocess.run([sys.executable, FOLDER / "cards.py", place, "--rehearse", VRAMFIT, *jobs], check=True)
        found = {row["name"]: row for row in map(json.loads, pathlib.Path(place, "jobs.jsonl").read_text(encoding="utf-8").splitlines())}
        for name, row in found.items():
            assert "error" not in row, f"{name}: {row['error']}"
        assert len(found) >= (40 if is_full else 3), f"{len(found)} jobs ran"
        sys.exit(subprocess.run([sys.executable, FOLDER / "record.py", "check", FOLDER / "card.json", place], check=False).returncode)


if __name__ == "__main__":
    main()
