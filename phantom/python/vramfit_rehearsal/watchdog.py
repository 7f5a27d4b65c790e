"""PyTorch's NCCL watchdog releases the tensors of complete collectives every 100 ms of real time, so peaks would differ from run
to run. On phantom GPUs it sees collectives as complete only at the end of a step (phantom/core/watchdog.h)."""

import atexit
import ctypes
import functools

from vramfit_rehearsal.gloo_groups import replace_everywhere


class Watchdog:
    def __init__(self, torch):
        self._core = None
        distributed = torch.distributed
        if distributed.is_available():
            replace_everywhere(distributed.destroy_process_group, self._released(distributed.destroy_process_group))

    # Ending a group waits for its watchdog to have seen everything.
    def _released(self, destroy):
        @functools.wraps(destroy)
        def call(*args, **kwargs):
            if self._core is not None:
                self._end()
            return destroy(*args, **kwargs)

        return call

    def _end(self):
        self._core.phantomSettleWatchdog()
        self._core.phantomReleaseWatchdog()

    def settle(self):
        """Before each training step. Costs a fifth of a second where there is a watchdog, nothing elsewhere."""
        if self._core is None:
            self._core = ctypes.CDLL("libvramfit-phantom.so")
            # If a program ends without destroying its groups, the watchdog would still run while the process shuts down.
            atexit.register(self._end)
        self._core.phantomHoldWatchdog()
        self._core.phantomSettleWatchdog()
