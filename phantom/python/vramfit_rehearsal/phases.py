"""Where a training script is: load, forward, backward, optimizer or other; the first step and the steady ones.

Uses only public hooks: the first module called while training begins forward, torch.autograd.backward is backward, and the
optimizers' global hooks mark the optimizer. Everything in between (clipping, zero_grad, evaluation, saving) is other. A step ends
with its last optimizer step, which is known only when the next forward begins.
"""

import functools
import importlib
import sys
import threading
import warnings


class Phases:
    def __init__(self, torch, peaks):
        self.torch = torch
        self.peaks = peaks
        self.phase = "load"
        self.step = 1
        self.notes = []
        self.on_mark = lambda: None
        self.on_step = lambda: None  # before a training step begins
        self.on_stepped = lambda: None
        self.inputs = []  # sizes of the first tensor that the model was given
        self._lock = threading.RLock()
        self._begun = False  # the first step
        self._stepped = False
        self._saw_module = False  # in this step
        self._backwards = 0  # nested: reentrant checkpointing
        self._stepping = None  # the optimizer whose step is running, outside of backward
        self._closing = None  # the optimizer whose step calls a closure, with forward and backward in it
        self._handle = None
        self._hook = self._make_hook()

    def watch(self):
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(self._make_optimizer_hook(self._begin_optimizer))
        optimizer.register_optimizer_step_post_hook(self._make_optimizer_hook(self._end_optimizer))
        autograd = self.torch.autograd
        run = autograd.backward

        @functools.wraps(run)
        def backward(*args, **kwargs):
            if is_compiling():
                return run(*args, **kwargs)
            self._begin_backward()
            try:
                return run(*args, **kwargs)
            finally:
                self._end_backward()

        is_compiling = self.torch.compiler.is_compiling
        autograd.backward = backward
        # torch.compile(module) warns of global hooks; ours does nothing under it, and the script has no use for the warning.
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
        self._await_forward()

    def now(self):
        return self.phase, "first" if self.step == 1 else "steady"

    def enter(self, phase):
        self.phase = phase
        self.peaks.mark(self.now())
        self.on_mark()

    # The hook exists only until forward begins: inside, modules run as they would without it, compiled ones too. It is installed again
    # under the same id, because torch.compile's guards see ids: a new id in each step would recompile everything.
    def _await_forward(self):
        if self._handle is None:
            self._handle = self.torch.nn.modules.module.register_module_forward_pre_hook(self._hook)
        else:
            self._handle.hooks_dict_ref()[self._handle.id] = self._hook

    def _stop_awaiting(self):
        self._handle.remove()

    def _make_hook(self):
        is_compiling = self.torch.compiler.is_compiling

        def hook(module, args):
            if is_compiling():
                return None
            # A global hook isn't given what was passed by name, which its caller holds.
            self._see_module(module, (*args, *sys._getframe(1).f_locals.get("kwargs", {}).values()))
            return None

        return hook

    def _make_optimizer_hook(self, act):
        is_compiling = self.torch.compiler.is_compiling

        def hook(optimizer, args, kwargs):
            if is_compiling():
                return None
            act(optimizer, any(map(callable, (*args[1:2], kwargs.get("closure")))))  # args begins with the optimizer
            return None

        return hook

    def _see_module(self, module, given):
        with self._lock:
            if not self.torch.is_grad_enabled() or not getattr(module, "training", True):
                if self.phase == "load":
                    self.enter("other")  # inference before any training
                return
            self.inputs = next((list(value.shape) for value in given if isinstance(value, self.torch.Tensor)), [])
            self._begin_step()
            self._saw_module = True
            self.enter("forward")
            self._stop_awaiting()

    def begin_anew(self):
        """After an error in a forward or an optimizer step that the program may survive: the next forward is awaited."""
        with self._lock:
            self.inputs = []
            if self._backwards == 0 and self._begun:
                self._stepping = self._closing = None
                self._await_forward()

    def inputs_of_step(self):
        """Between steps, those of the step that follows are not known yet."""
        return self.inputs if self.phase in ("forward", "backward", "optimizer") else []

    def _begin_step(self):
        if self._stepped:
            self._stepped = self._saw_module = False
            self.step += 1
        elif self._begun:
            return
        self._begun = True
        self.on_step()

    def _begin_backward(self):
        with self._lock:
            self._backwards += 1
            if self._backwards > 1:
                return
            self._stop_awaiting()
            # Pipelines and scripts with several losses go backward several times after their forwards.
            if self.phase != "forward" and (self._stepped or not self._saw_module):
                self._begin_step()
                self.phase = "forward"
                self.peaks.current = self.now()
                self.note("a forward began without a module call: everything since the previous phase counts as forward")
            self._stepping = None
            self.enter("backward")

    def _end_backward(self):
        with self._lock:
            self._backwards -= 1
            if self._backwards == 0:
                # After a closure's backward the update follows, or the closure is called again.
                self.enter("optimizer" if self._closing is not None else "other")
                self._await_forward()

    def _begin_optimizer(self, optimizer, has_closure):
        with self._lock:
            if self._backwards > 0 or self._stepping is not None or self._closing is not None:
                return
            if has_closure:  # as Lightning and LBFGS step
                self._closing = optimizer
                return
            self._stop_awaiting()
            self._stepping = optimizer
            self.enter("optimizer")

    def _end_optimizer(self, optimizer, _has_closure):
        with self._lock:
            self._stepped = True
            self.on_stepped()
            if optimizer in (self._stepping, self._closing):
                self._stepping = self._closing = None
                self.enter("other")
                self._await_forward()

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)
