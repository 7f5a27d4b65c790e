"""A launcher with --ranks R becomes rank R: the program gets the variables that the launcher itself, without vramfit, gives that rank.

Usage: launchers_test.py
"""
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
SHOW = """import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "rank" + os.environ["RANK"]), "w") as file:
    json.dump([sys.argv[1:], dict(os.environ)], file)
"""
CONFIG = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 2
machine_rank: 0
main_process_port: 0
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_activation_checkpointing: true
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
"""
PASSED_ON = re.compile("ACCELERATE_|FSDP_|RANK|LOCAL_|WORLD_SIZE|GROUP_|ROLE_|TORCHELASTIC_|OMP_NUM|TORCH_NCCL|NCCL_")
# The rendezvous is the launcher's own, or the store of the ghosts; torchrun names an error file where it collects its ranks' errors.
OTHER = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}


def run(folder, command, expected=0):
    """By rank: what words and variables the program got; and all that was printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == expected, (command, done.returncode, done.stdout[-3000:], done.stderr[-6000:])
    shown = {}
    for path in glob.glob(os.path.join(folder, "rank*")):
        with open(path, encoding="utf-8") as file:
            words, variables = json.load(file)
        os.remove(path)
        passed_on = {name: value for name, value in variables.items() if PASSED_ON.match(name) and name not in OTHER}
        shown[int(variables["RANK"])] = words, passed_on
    return shown, done.stdout + done.stderr


def played(folder, gpus, rank, *command, expected=0):
    return run(folder, [VRAMFIT, "rehearse", "--gpus", gpus, "--ranks", str(rank), "--", *command], expected)


def main():
    with tempfile.TemporaryDirectory() as folder:
        script, config, shell = (os.path.join(folder, name) for name in ("show.py", "config.yaml", "train.sh"))
        python_m = [sys.executable, "-m"]
        accelerate = [*python_m, "accelerate.commands.accelerate_cli", "launch", "--config_file", config, "--fsdp_offload_params", "true",
                      script, "--lr", "1"]
        torchrun = [*python_m, "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", script, "--index", "${local_rank}"]
        for path, text in ((script, SHOW), (config, CONFIG), (shell, f"export RANK=99\n{subprocess.list2cmdline(accelerate)}\n")):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        real, _ = run(folder, accelerate)
        assert sorted(real) == [0, 1] and real[1][1]["FSDP_VERSION"] == "2", real
        for command in (accelerate, ["sh", shell]):
            shown, printed = played(folder, "2xH100-80GB", 1, *command)
            assert shown == {1: real[1]}, (command, set(shown[1][1].items()) ^ set(real[1][1].items()), printed)

        shown, _ = played(folder, "2x2xH100-80GB", 3, *torchrun)
        words, variables = shown[3]
        assert words == ["--index", "1"] and (variables["GROUP_RANK"], variables["WORLD_SIZE"]) == ("1", "4"), shown
        _, printed = played(folder, "4x2xH100-80GB", 3, *torchrun, expected=2)
        assert "the launcher starts 2 x 2 ranks" in printed and "--gpus has 4 x 2 GPUs" in printed, printed


if __name__ == "__main__":
    main()
