"""torch.distributed.checkpoint in a session with ghosts. Its coordinator, rank 0, gathers every rank's plan and sends each its
part, so the rank that runs is made the coordinator. The ghosts' plans are copies of its own. They are emptied, since ghosts write
nothing, and the check that all shards are covered is skipped.

No public interface controls these, so they are found by name, and left alone if another version has them elsewhere.
"""

import dataclasses
import importlib.machinery
import sys

UTILITIES, PLANNER = "torch.distributed.checkpoint.utils", "torch.distributed.checkpoint.default_planner"


def install(distributed):
    """Waits until the program imports these modules, because importing them takes a second."""
    for name in (UTILITIES, PLANNER):
        if name in sys.modules:
            change(distributed, name, sys.modules[name])

    class AfterCheckpoint:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name not in (UTILITIES, PLANNER):
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is None or spec.loader is None:
                return None
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                change(distributed, name, module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, AfterCheckpoint)


played = [0]  # the rank that runs, in the group of the last checkpoint


def only_own(all_plans, *_args, **_kwargs):
    return [plan if rank == played[-1] else dataclasses.replace(plan, items=[]) for rank, plan in enumerate(all_plans)]


def change(distributed, name, module):
    if name == UTILITIES and hasattr(module, "_DistWrapper"):
        begin = module._DistWrapper.__init__

        def __init__(self, group, use_dist, coordinator_rank):
            own = distributed.get_rank(group) if use_dist else coordinator_rank
            played.append(own)
            begin(self, group, use_dist, own)

        module._DistWrapper.__init__ = __init__
    if name == PLANNER and hasattr(module, "_validate_global_plan"):
        module._validate_global_plan = lambda global_plan, metadata: True
        if hasattr(module, "dedup_save_plans"):
            module.dedup_save_plans = only_own
