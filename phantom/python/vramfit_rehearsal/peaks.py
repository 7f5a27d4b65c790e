"""Peaks of the allocator's statistics, phase by phase, without the script noticing that they are reset in between."""

import functools

NAMES = ("requested_bytes", "allocated_bytes", "reserved_bytes")


def _raise_peaks(stats, hidden):
    """Every "peak" of the nested `stats` becomes at least that of `hidden`, in place."""
    for key, value in stats.items():
        before = hidden.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _raise_peaks(value, before)
        elif key == "peak" and before is not None:
            stats[key] = max(value, before)


class Device:
    """One device of this process."""

    def __init__(self):
        self.hidden = {}  # statistics as of our last reset, until the script resets them itself
        self.phases = {}  # (phase, step) -> {name: peak}
        self.retries = self.out_of_memory = 0  # counted before the script reset its counters
        self.last = {}

    def add(self, key, stats):
        peaks = self.phases.setdefault(key, dict.fromkeys(NAMES, 0))
        for name in NAMES:
            peaks[name] = max(peaks[name], stats[name]["all"]["peak"])
        self.last = stats

    def peak(self, name):
        return max((peaks[name] for peaks in self.phases.values()), default=0)


class Peaks:
    """`mark` closes a phase: its peaks are read and reset. The script's own reads see the largest since its own reset."""

    def __init__(self, torch):
        self.torch = torch
        self.devices = {}
        self.notes = []
        self.current = ("load", "first")
        memory = torch.cuda.memory
        self.read = memory.memory_stats_as_nested_dict
        self.reset = memory.reset_peak_memory_stats
        self.reset_counters = memory.reset_accumulated_memory_stats
        self.available = True

    def mark(self, following):
        """What was seen since the last mark belongs to the phase that ends here; `following` begins."""
        for index, device, stats in self._all():
            device.add(self.current, stats)
            _raise_peaks(stats, device.hidden)
            device.hidden = stats
            self.reset(index)
        self.current = following

    def look(self):
        """As mark, but the phase goes on."""
        for _, device, stats in self._all():
            device.add(self.current, stats)

    def _all(self):
        if not self.available or not self.torch.cuda.is_initialized():
            return
        for index in range(self.torch.cuda.device_count()):
            try:
                stats = self.read(index)
            except RuntimeError as error:  # an allocator that counts nothing: a pluggable one
                self.available = False
                self.notes.append(f"no statistics from this allocator: {error}".splitlines()[0])
                return
            if stats["reserved_bytes"]["all"]["allocated"] == 0 and index not in self.devices:
                continue  # never used
            yield index, self.devices.setdefault(index, Device()), stats

    def _index(self, device):
        if device is None:
            return self.torch.cuda.current_device()
        if isinstance(device, int):
            return device
        index = self.torch.device(device).index
        return self.torch.cuda.current_device() if index is None else index

    def keep_what_the_script_sees(self):
        """memory_stats, max_memory_*, memory_summary and torch.accelerator's forms all read through these."""
        cuda, memory = self.torch.cuda, self.torch.cuda.memory

        @functools.wraps(memory.memory_stats_as_nested_dict)
        def memory_stats_as_nested_dict(device=None):
            stats = self.read(device)
            if stats:
                self._show(self._index(device), stats)
            return stats

        @functools.wraps(memory.reset_peak_memory_stats)
        def reset_peak_memory_stats(device=None):
            self._before_reset(device)
            return self.reset(device)

        @functools.wraps(memory.reset_accumulated_memory_stats)
        def reset_accumulated_memory_stats(device=None):
            self._before_counters_are_reset(device)
            return self.reset_counters(device)

        for function in (memory_stats_as_nested_dict, reset_peak_memory_stats, reset_accumulated_memory_stats):
            for module in (memory, cuda):
                if hasattr(module, function.__name__):
                    setattr(module, function.__name__, function)
        self._keep_accelerator()

    def _keep_accelerator(self):
        accelerator = getattr(self.torch, "accelerator", None)
        memory = getattr(accelerator, "memory", None)
        if memory is None:
            return
        read, reset = memory.memory_stats, memory.reset_peak_memory_stats

        @functools.wraps(read)
        def memory_stats(device_index=None, /):
            stats = read(device_index)
            device = self.devices.get(self._index(device_index)) if stats else None
            for key in [key for key in stats if device and key.endswith(".peak")]:
                value = device.hidden
                for part in key.split("."):
                    value = value.get(part, {}) if isinstance(value, dict) else {}
                stats[key] = max(stats[key], value or 0)
            return stats

        @functools.wraps(reset)
        def reset_peak_memory_stats(device_index=None, /):
            self._before_reset(device_index)
            return reset(device_index)

        for function in (memory_stats, reset_peak_memory_stats):
            for module in (memory, accelerator):
                if hasattr(module, function.__name__):
                    setattr(module, function.__name__, function)

    def _show(self, index, stats):
        if index in self.devices:
            _raise_peaks(stats, self.devices[index].hidden)

    def _before_reset(self, device):
        if not self.torch.cuda.is_initialized():
            return
        self.look()
        index = self._index(device)
        if index in self.devices:
            self.devices[index].hidden = {}

    def _before_counters_are_reset(self, device):
        if not self.torch.cuda.is_initialized():
            return
        index = self._index(device)
        if index in self.devices:
            stats = self.read(index)
            self.devices[index].retries += stats["num_alloc_retries"]
            self.devices[index].out_of_memory += stats["num_ooms"]
