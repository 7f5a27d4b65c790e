"""With --ranks R, a launcher of ranks becomes rank R.

The launcher's own code reads its flags and its configuration files, and sets the variables that it passes on (ACCELERATE_*, FSDP_*).
Where it would start the ranks of a node, the program starts in its place, as rank R. That place is torch.distributed.launcher.api,
through which torchrun, accelerate launch, tune run and fabric run go.
"""

import os
import sys

RANK = "VRAMFIT_REHEARSAL_RANK"  # NAME=VALUE of each variable of the rank, with spaces in between


def rank_variables():
    return dict(item.split("=", 1) for item in os.environ[RANK].split())


def install_torch(api):
    """`api` is the module torch.distributed.launcher.api."""

    def launch_agent(config, entrypoint, args):
        variables = rank_variables()
        _require(config.min_nodes, config.max_nodes, config.nproc_per_node, variables)
        os.environ.update({**_as_torchrun(config, variables), **variables})
        if callable(entrypoint):
            return {int(variables["RANK"]): entrypoint(*args)}
        words = [str(word).replace("${local_rank}", variables["LOCAL_RANK"]) for word in (entrypoint, *args)]
        sys.stdout.flush()
        sys.stderr.flush()
        return os.execvp(words[0], words)

    api.launch_agent = launch_agent


def install_accelerate(launch):
    """`launch` is the module accelerate.commands.launch. Its launcher of a single process starts that directly."""
    start = launch.simple_launcher

    def simple_launcher(args):
        _require(1, 1, 1, rank_variables())
        return start(args)

    launch.simple_launcher = simple_launcher


def _require(least_nodes, most_nodes, ranks_of_node, variables):
    nodes, local = int(variables["GROUP_WORLD_SIZE"]), int(variables["LOCAL_WORLD_SIZE"])
    if least_nodes <= nodes <= most_nodes and ranks_of_node == local:
        return
    print(f"vramfit rehearse: the launcher starts {most_nodes} x {ranks_of_node} ranks (nodes x ranks of a node), but --gpus has "
          f"{nodes} x {local} GPUs. Change the launcher's numbers or --gpus, so that they are the same.", file=sys.stderr)
    sys.exit(2)


def _as_torchrun(config, variables):
    """What its agent sets beyond the variables of the rank."""
    signals = getattr(config, "signals_to_handle", None)
    return {**({"TORCHELASTIC_SIGNALS_TO_HANDLE": signals} if signals else {}),
            "ROLE_RANK": variables["RANK"], "ROLE_WORLD_SIZE": variables["WORLD_SIZE"], "ROLE_NAME": config.role or "default",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
            "TORCHELASTIC_RUN_ID": str(config.run_id),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
