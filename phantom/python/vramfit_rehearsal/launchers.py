"""With --ranks R, a launcher of ranks becomes rank R.

The launcher's own code reads its flags and its configuration files, and sets the variables that it passes on (ACCELERATE_*, FSDP_*).
Where it would start the ranks of a node, the program starts in its place, as rank R. That place is torch.distributed.launcher.api,
through which torchrun, accelerate launch, tune run and fabric run go. DeepSpeed's launcher starts its own: deepspeed.launcher.runner
reads flags and the hostfile and starts deepspeed.launcher.launch on each node, which starts the ranks with subprocess.Popen.
"""

import os
import subprocess
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


def install_deepspeed_runner(runner):
    """`runner` is the module deepspeed.launcher.runner. Of several nodes, it starts the one of the rank here, without ssh."""
    parse = runner.parse_args

    def parse_args(args=None):
        given = parse(args)
        variables = rank_variables()
        has_hosts = os.path.isfile(given.hostfile)
        if has_hosts and (getattr(given, "launcher", "pdsh") or "pdsh").lower() != "pdsh":
            _refuse(f"deepspeed --launcher {given.launcher} leaves the variables of a rank to that launcher. Start the program with it "
                    "instead (mpirun or srun, then CMD), or leave --launcher out.")
        if has_hosts:
            if not hasattr(given, "no_ssh"):
                _refuse("this deepspeed has no --no_ssh, so one of its nodes can't be started alone. Use a newer one, or leave the "
                        "hostfile out and give --gpus one node.")
            given.no_ssh, given.node_rank = True, int(variables["GROUP_RANK"])
            given.master_addr = given.master_addr or variables["MASTER_ADDR"]
            _read_deepspeed_environment(runner)
        return given

    runner.parse_args = parse_args


def _read_deepspeed_environment(runner):
    """What the runner exports to the nodes: NAME=VALUE in .deepspeed_env."""
    for folder in getattr(runner, "DEEPSPEED_ENVIRONMENT_PATHS", ()):
        path = os.path.join(folder, getattr(runner, "DEEPSPEED_ENVIRONMENT_NAME", ".deepspeed_env"))
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    name, equals, value = line.strip().partition("=")
                    if equals:
                        os.environ[name] = value


def install_deepspeed_launch():
    """In a process that runs deepspeed.launcher.launch as a program: what it would start as this rank takes its place."""
    start = subprocess.Popen

    class Popen(start):
        def __new__(cls, *args, **kwargs):
            variables, given = rank_variables(), kwargs.get("env") or {}
            if "CROSS_RANK" not in given or "LOCAL_SIZE" not in given:
                return super().__new__(cls)
            local = int(given["LOCAL_SIZE"])
            _require(int(given["CROSS_SIZE"]), int(given["CROSS_SIZE"]), local, variables)
            if given["RANK"] != variables["RANK"]:
                return _NotStarted()
            for name, descriptor in (("stdout", 1), ("stderr", 2)):
                if kwargs.get(name) is not None:
                    os.dup2(kwargs[name].fileno(), descriptor)
            words = args[0]
            sys.stdout.flush()
            sys.stderr.flush()
            return os.execvpe(words[0], words, {**given, **variables})

    subprocess.Popen = Popen


class _NotStarted:
    """A rank before the one that is played."""

    pid = 0


def _refuse(why):
    print(f"vramfit rehearse: {why}", file=sys.stderr)
    sys.exit(2)


def _require(least_nodes, most_nodes, ranks_of_node, variables):
    nodes, local = int(variables["GROUP_WORLD_SIZE"]), int(variables["LOCAL_WORLD_SIZE"])
    if least_nodes <= nodes <= most_nodes and ranks_of_node == local:
        return
    _refuse(f"the launcher starts {most_nodes} x {ranks_of_node} ranks (nodes x ranks of a node), but --gpus has "
            f"{nodes} x {local} GPUs. Change the launcher's numbers or --gpus, so that they are the same.")


def _as_torchrun(config, variables):
    """What its agent sets beyond the variables of the rank."""
    signals = getattr(config, "signals_to_handle", None)
    return {**({"TORCHELASTIC_SIGNALS_TO_HANDLE": signals} if signals else {}),
            "ROLE_RANK": variables["RANK"], "ROLE_WORLD_SIZE": variables["WORLD_SIZE"], "ROLE_NAME": config.role or "default",
            "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
            "TORCHELASTIC_RUN_ID": str(config.run_id),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")}
