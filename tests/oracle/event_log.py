"""What the caching allocator did: its peaks, and all of its events."""

import json

import torch


def peaks():
    stats = torch.cuda.memory_stats()
    return {"peak_allocated": stats["allocated_bytes.all.peak"], "peak_reserved": stats["reserved_bytes.all.peak"],
            "peak_requested": stats["requested_bytes.all.peak"], "peak_active": stats["active_bytes.all.peak"],
            "allocated": stats["allocated_bytes.all.current"], "reserved": stats["reserved_bytes.all.current"],
            "retries": stats["num_alloc_retries"]}


class EventLog:
    """All events of the allocator since it was made, in order; `mark` notes where a step begins."""

    def __init__(self):
        torch.cuda.memory._record_memory_history(max_entries=10_000_000, context=None, stacks="python")
        self.marks = []

    def mark(self, name):
        self.marks.append((self.count(), name))

    @staticmethod
    def count():
        return len(EventLog.events())

    @staticmethod
    def events():
        return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]

    def write(self, path):
        events = self.events()
        starts = dict(self.marks)
        kinds = {"alloc": "+", "free_completed": "-"}
        with open(path, "w", encoding="utf-8") as out:
            for number, event in enumerate(events):
                if number in starts:
                    out.write(json.dumps(["mark", starts[number]]) + "\n")
                kind = kinds.get(event["action"], event["action"])
                if kind != "free_requested":
                    out.write(json.dumps([kind, event["size"], event["addr"], event["stream"]]) + "\n")
