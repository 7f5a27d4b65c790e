"""Python imports this at startup because `vramfit rehearse` puts its folder first on PYTHONPATH. It doesn't import torch: it
waits until the program has imported torch, and then records its memory statistics. The sitecustomize that would have been
imported otherwise is imported too. With --ranks R, launchers of ranks become rank R (vramfit_rehearsal/launchers.py)."""

import importlib.machinery
import importlib.util
import os
import sys


class _AfterImport:
    """A finder that lets the real finders find a module, and acts once its import is complete."""

    def __init__(self, name, act):
        self.name = name
        self.act = act

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)  # some packages have one of their own
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            del spec.loader.exec_module  # the loader is again what the program would have seen
            execute(module)
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            self.act(module)

        spec.loader.exec_module = exec_module
        return spec


def _after_import(name, act):
    """Now, if a process that was started beforehand has imported it (vramfit_warm)."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, act))


def _record(torch):
    try:
        import vramfit_rehearsal
        vramfit_rehearsal.install(torch)
    except Exception as error:  # a rehearsal without statistics is better than none
        print(f"vramfit rehearse: no statistics for this process: {type(error).__name__}: {error}", file=sys.stderr)


def _play_a_rank_of_torchrun(api):
    from vramfit_rehearsal import launchers
    launchers.install_torch(api)


def _play_a_rank_of_accelerate(launch):
    from vramfit_rehearsal import launchers
    launchers.install_accelerate(launch)


def _play_a_rank_of_deepspeed(runner):
    from vramfit_rehearsal import launchers
    launchers.install_deepspeed_runner(runner)


def _play_a_rank_of_mpi(module):
    from vramfit_rehearsal import mpi
    mpi.install(module)


def _is_program(module):
    """Whether this process was started as python -m MODULE."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    return module.encode() in words and b"-m" in words[:words.index(module.encode())][-1:]


def _watch_triton(jit):
    try:
        from vramfit_rehearsal import triton_kernels
        triton_kernels.install(jit)
    except Exception:  # core judges the launches then
        pass


def _import_the_next_one():
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def start():
    _after_import("torch", _record)
    _after_import("triton.runtime.jit", _watch_triton)
    if os.environ.get("VRAMFIT_REHEARSAL_RANK"):
        _after_import("torch.distributed.launcher.api", _play_a_rank_of_torchrun)
        _after_import("accelerate.commands.launch", _play_a_rank_of_accelerate)
        _after_import("deepspeed.launcher.runner", _play_a_rank_of_deepspeed)
        _after_import("mpi4py.MPI", _play_a_rank_of_mpi)
        if _is_program("deepspeed.launcher.launch"):
            from vramfit_rehearsal import launchers as _launchers
            _launchers.install_deepspeed_launch()


if __name__ == "sitecustomize":
    if os.environ.get("VRAMFIT_PHANTOM") and not os.environ.get("VRAMFIT_WARM_SERVER"):
        start()
    _import_the_next_one()
