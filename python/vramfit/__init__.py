"""GPU memory of training jobs: estimated, planned and rehearsed on simulated GPUs, from Python.

    import vramfit

    vramfit.estimate("Qwen/Qwen3-8B", gpus="8xH100-80GB").fits
    vramfit.plan("Qwen/Qwen3-8B", gpus="4xRTX4090", global_batch=64).job["micro_batch"]
    vramfit.rehearse(["torchrun", "--nproc-per-node", "8", "train.py"], gpus="8xH100-80GB").total_bytes

Each call runs the program `vramfit`, whose flags are the keyword arguments: --micro-batch 4 is micro_batch=4.
"""
from importlib import metadata as _metadata

from vramfit._commands import Option, estimate, plan
from vramfit._program import InputError, ModelError, VramfitError
from vramfit._rehearse import RehearsalFailed, rehearsal, rehearse
from vramfit._results import Estimate, Phase, Plan, Rank, Rehearsal, Result
from vramfit._warm import Warm

try:
    __version__ = _metadata.version("vramfit")
except _metadata.PackageNotFoundError:  # imported from the sources
    __version__ = "0"

__all__ = ["Estimate", "InputError", "ModelError", "Option", "Phase", "Plan", "Rank", "Rehearsal", "RehearsalFailed", "Result",
           "VramfitError", "Warm", "__version__", "estimate", "plan", "rehearsal", "rehearse"]
