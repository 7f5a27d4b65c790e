"""Saved activations in host memory, as a draft of torchtitan kept them in July 2024 (pytorch/torchtitan, commit 9dc418a8b).

Only tensors of at least ffn x sequence elements are offloaded. Each is copied to pinned memory on a separate stream when it is saved,
released on the device when the next block's forward has been issued, and fetched before the backward of the block above. The last
block's tensors stay.
"""

import torch
from torch.autograd.graph import saved_tensors_hooks


class Copy:
    """One saved tensor: on the device until its copy to the host is there, and again from its fetch until backward takes it."""

    def __init__(self, tensor, stream):
        self.stream, self.device, self.on_device, self.fetched = stream, tensor.device, tensor, None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.on_host = tensor.to("cpu", non_blocking=True)
            self.stored = stream.record_event()

    def let_go(self):
        torch.cuda.current_stream().wait_event(self.stored)
        self.on_device = None

    def fetch(self):
        if self.on_device is not None:
            return
        self.on_device = torch.empty_like(self.on_host, device=self.device)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.on_device.copy_(self.on_host, non_blocking=True)
            self.fetched = self.stream.record_event()

    def take(self):
        if self.fetched is not None:
            torch.cuda.current_stream().wait_event(self.fetched)
        tensor, self.on_device, self.on_host = self.on_device, None, None
        return tensor


class SavedByBlock(saved_tensors_hooks):
    """What one block saves in forward while this is entered."""

    def __init__(self, stream, fewest_elements):
        self.copies = []

        def pack(tensor):
            if not tensor.is_cuda or tensor.numel() < fewest_elements:
                return tensor
            self.copies.append(Copy(tensor, stream))
            return self.copies[-1]

        super().__init__(pack, lambda packed: packed.take() if isinstance(packed, Copy) else packed)


def offload_activations(blocks, fewest_elements):
    """Adds hooks to `blocks`, which run in this order."""
    stream = torch.cuda.Stream()
    saved = [None] * len(blocks)

    def hooks_of(number):
        def before_forward(_module, _inputs):
            saved[number] = SavedByBlock(stream, fewest_elements)
            saved[number].__enter__()

        def after_forward(_module, _inputs, _output):
            saved[number].__exit__(None, None, None)
            for copy in saved[number - 1].copies if number else []:
                copy.let_go()

        def before_backward(_module, _gradients):
            for copy in saved[number - 1].copies if number else []:
                copy.fetch()

        return before_forward, after_forward, before_backward

    for number, block in enumerate(blocks):
        before_forward, after_forward, before_backward = hooks_of(number)
        block.register_forward_pre_hook(before_forward)
        block.register_forward_hook(after_forward)
        block.register_full_backward_pre_hook(before_backward)
