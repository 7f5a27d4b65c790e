"""Runs a Python program on phantom cards: a session folder, and the variables that vramfit rehearse would set."""
import glob
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

LIBRARIES = pathlib.Path(os.environ["VRAMFIT_BIN_DIR"]).parent / "lib" / "phantom"
CARD = {"catalog_name": "H100-80GB", "name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "sm_count": 132,
        "memory_bytes": 84942979072, "context_bytes": 500000000, "nccl_bytes": 0}
SETTINGS = {"addresses": "ascending", "completion": "immediate", "real_bytes": 1 << 20, "trace": False}


def record_of(file):
    """What base/process/process_record.h lays out, as far as tests look at it."""
    header = struct.unpack_from("<11q", file)
    cards, texts = header[9:]
    record = {"pid": header[1], "uncertain_reads": {"count": header[4], "bytes": header[5]}, "unsupported": {}, "escapes": [], "workspaces": {}}
    begin = 11 * 8 + 4096 + cards * 28 * 8
    for at in range(begin, begin + texts * 520, 520):
        kind, _, _, count, size = struct.unpack_from("<5q", file, at)
        name = file[at + 40:at + 520].split(b"\0")[0].decode()
        if kind == 4:
            record["unsupported"][name] = count
        elif kind == 5:
            record["escapes"].append(name)
        elif kind == 6:
            record["workspaces"][name] = size
    return record


def run(program, card=None, cards=1, timeout=300, **settings):
    """Runs the text of a program; returns (the object that its last line of output is, in JSON; the process's record)."""
    with tempfile.TemporaryDirectory() as folder:
        session = {"schema": "vramfit/phantom-session@1", "nodes": 1, "cards_per_node": cards, "played_rank": None,
                   "card": {**CARD, **(card or {})}, "settings": {**SETTINGS, **settings}}
        pathlib.Path(folder, "session.json").write_text(json.dumps(session), encoding="utf-8")
        environment = {**os.environ, "VRAMFIT_PHANTOM": folder, "VRAMFIT_PHANTOM_LIB": str(LIBRARIES),
                       "LD_AUDIT": str(LIBRARIES / "libvramfit-phantom-audit.so")}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=timeout,
                              check=False)
        if done.returncode != 0:
            raise SystemExit(f"the program ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        records = [record_of(pathlib.Path(path).read_bytes()) for path in glob.glob(f"{folder}/process.*.record")]
        return json.loads(done.stdout.splitlines()[-1]), records[0] if records else None
