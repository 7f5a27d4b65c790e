"""What was in GPU memory when it ran out.

The allocator's observer (torch._C._cuda_attach_out_of_memory_observer) and the queue for calls that wait until CUDA is initialized
(torch.cuda._lazy_call) are not public; if a version of torch lacks them, only these lists are missing.
"""

import gc

MOST_RECORDED = 4
MOST_SIZES = 8


class OutOfMemory:
    def __init__(self, torch, phases):
        self.torch = torch
        self.phases = phases
        self.events = []
        self.count = 0
        self.steps_since = 0  # that came to their end
        self.worked = []      # the sizes of the model's first input in the last of them
        self.on_event = lambda: None

    def watch(self):
        attach = getattr(self.torch._C, "_cuda_attach_out_of_memory_observer", None)
        later = getattr(self.torch.cuda, "_lazy_call", None)
        if attach is not None and later is not None:
            later(lambda: self._attach(attach))
            self.phases.on_stepped = self._see_step

    def _attach(self, attach):
        try:
            attach(self._see)
        except RuntimeError:
            pass  # backend:cudaMallocAsync has no observers

    def _see_step(self):
        if self.count > 0:
            self.steps_since += 1
            self.worked = self.phases.inputs

    def _see(self, device, asked, limit, free):
        self.count += 1
        self.steps_since, self.worked = 0, []
        phase, step = self.phases.now()
        event = {"device": device, "phase": phase, "step": self.phases.step, "steady": step == "steady", "inputs": self.phases.inputs_of_step(),
                 "asked_bytes": asked, "limit_bytes": limit, "free_bytes": free, "live": []}
        if self.count <= MOST_RECORDED:
            try:
                event.update(self._living(device))
            except Exception as error:  # the program's own error is what matters here
                event["note"] = f"live tensors can't be listed: {type(error).__name__}: {error}"
        self.events[MOST_RECORDED - 1:] = [event]  # the first ones, and the last: the one that the program survives or ends with
        self.phases.begin_anew()
        self.on_event()

    def _living(self, device):
        stats = self.phases.peaks.read(device)
        allocated = stats["allocated_bytes"]["all"]["current"]
        kinds = self._kinds(device)
        kinds["activations and all else"] = max(0, allocated - sum(kinds.values()))
        live = [{"what": what, "bytes": size} for what, size in sorted(kinds.items(), key=lambda item: -item[1]) if size > 0]
        return {"allocated_bytes": allocated, "reserved_bytes": stats["reserved_bytes"]["all"]["current"], "live": live,
                "largest": self._largest(device)}

    def _largest(self, device):
        sizes = {}
        for segment in self.torch.cuda.memory_snapshot():
            if segment["device"] != device:
                continue
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    count = sizes.setdefault(block["size"], 0)
                    sizes[block["size"]] = count + 1
        most = sorted(sizes.items(), key=lambda item: -item[0] * item[1])[:MOST_SIZES]
        return [{"bytes": size, "count": count} for size, count in most]

    def _kinds(self, device):
        """Bytes by what Python knows about each storage, which counts once, for the first kind that holds it."""
        tensors, optimizers = [], []
        for thing in gc.get_objects():
            kind = type(thing)
            if issubclass(kind, self.torch.Tensor):
                tensors.append(thing)
            elif issubclass(kind, self.torch.optim.Optimizer):
                optimizers.append(thing)
        parameters = [tensor for tensor in tensors if isinstance(tensor, self.torch.nn.Parameter)]
        gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
        states = [value for optimizer in optimizers for state in list(optimizer.state.values()) if isinstance(state, dict)
                  for value in state.values() if isinstance(value, self.torch.Tensor)]
        seen = set()
        return {"parameters": self._bytes(parameters, device, seen), "gradients": self._bytes(gradients, device, seen),
                "optimizer state": self._bytes(states, device, seen)}

    def _bytes(self, tensors, device, seen):
        total = 0
        with self.torch.no_grad():
            for tensor in tensors:
                local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
                if local.device.type != "cuda" or local.device.index != device:
                    continue
                try:
                    storage = local.untyped_storage()
                    address, size = storage.data_ptr(), storage.nbytes()
                except (RuntimeError, NotImplementedError):
                    continue  # sparse, functional or wrapper tensors have no storage of their own
                if address != 0 and address not in seen:
                    seen.add(address)
                    total += -(-size // 512) * 512
        return total
