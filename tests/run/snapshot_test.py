"""Memory snapshots: torch.cuda._memory_viz opens them, its viewer's reader can, and their peak is the one measured."""

import collections
import json
import os
import pickle
import pickletools
import unittest

from torch.cuda import _memory_viz

from observing import Workplace

# What the reader in MemoryViz.js knows of.
OPCODES = {"PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "SETITEMS", "APPENDS", "BINUNICODE", "BININT1", "BININT", "LONG1", "NEWTRUE", "NEWFALSE",
           "TUPLE2", "LONG_BINPUT", "LONG_BINGET"}
SEGMENT = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type", "segment_pool_id",
           "is_expandable", "frames", "blocks"}
BLOCK = {"address", "size", "requested_size", "state", "frames"}
EVENT = {"action", "addr", "size", "stream", "time_us", "frames"}
GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def load(path):
    """Our own file, written a moment ago by the run under test."""
    with open(path, "rb") as f:
        return pickle.load(f)


def record_of(place, rank=0):
    with open(place.path("run.json"), encoding="utf-8") as f:
        return json.load(f)["ranks"][rank]


class Replay:
    """The trace from its beginning: what is live and reserved after each event."""

    def __init__(self, events):
        self.live, self.peak, self.at_peak, self.reserved, self.peak_reserved = {}, 0, {}, 0, 0
        for event in events:
            if event["action"] == "alloc":
                assert event["addr"] not in self.live, "an address is handed out twice"
                self.live[event["addr"]] = event
            elif event["action"] == "free_completed":
                assert self.live.pop(event["addr"])["size"] == event["size"]
            elif event["action"] in GROWS + SHRINKS:
                self.reserved += event["size"] if event["action"] in GROWS else -event["size"]
                self.peak_reserved = max(self.peak_reserved, self.reserved)
            total = sum(e["size"] for e in self.live.values()) if event["action"] == "alloc" else 0
            if total > self.peak:
                self.peak, self.at_peak = total, collections.Counter()
                for e in self.live.values():
                    self.at_peak[e["category"]] += e["size"]


class Snapshot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace()

    @classmethod
    def tearDownClass(cls):
        cls.place.directory.cleanup()

    def opened(self, path):
        """The snapshot, after PyTorch's own tools have drawn it."""
        snapshot = load(path)
        self.assertEqual(set(snapshot), {"segments", "device_traces", "allocator_settings", "external_annotations"})
        for segment in snapshot["segments"]:
            self.assertEqual(set(segment), SEGMENT)
            self.assertEqual(sum(block["size"] for block in segment["blocks"]), segment["total_size"])
            for block in segment["blocks"]:
                self.assertEqual(set(block), BLOCK)
                self.assertEqual([f["filename"] for f in block["frames"]], ["label", "phase", "category"] if block["state"] == "active_allocated" else [])
        for event in (e for trace in snapshot["device_traces"] for e in trace):
            self.assertEqual(set(event) - {"category", "device_free"}, EVENT - ({"addr"} if event["action"] == "oom" else set()))
        self.assertIn("total_allocated", _memory_viz.segsum(snapshot))
        self.assertIn("entries", _memory_viz.trace(snapshot))
        for draw in (_memory_viz.memory, _memory_viz.segments):
            self.assertIn("category:0:parameters", draw(snapshot, format_flamegraph=lambda lines: lines))
        for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot), _memory_viz.trace_plot(load(path), filter_freed=True)):
            self.assertIn("MemoryViz.js", page)
        return snapshot

    def check_viewer(self, path, snapshot):
        """MemoryViz.js passes a list's items as arguments of one call, and once there are categories wants "unknown" too."""
        with open(path, "rb") as f:
            opcodes = [(opcode.name, argument) for opcode, argument, _ in pickletools.genops(f)]
        self.assertLessEqual({name for name, _ in opcodes}, OPCODES)
        self.assertEqual([argument for name, argument in opcodes if name == "PROTO"], [2])
        lengths, marks = [], []
        for name, _ in opcodes:
            if name == "MARK":
                marks.append(0)
            elif name in ("SETITEMS", "APPENDS"):
                lengths.append(marks.pop())
            elif marks and name not in ("LONG_BINPUT", "TUPLE2", "PROTO", "STOP"):
                marks[-1] += 1
        self.assertEqual(max(lengths), 1000)
        categories = {event.get("category") for trace in snapshot["device_traces"] for event in trace}
        self.assertIn("unknown", categories)

    def check_against(self, snapshot, rank, device=0):
        """The trace's peak is the meter's, by category too, and it leads to the state at the end."""
        replay = Replay(snapshot["device_traces"][device])
        self.assertEqual(replay.peak, rank["peak_requested_bytes"])
        self.assertEqual(replay.peak_reserved, rank["peak_reserved_bytes"])
        breakdown = {name: size for name, size in rank["breakdown"].items() if size and name not in ("rounding", "fragmentation", "outside_allocator")}
        self.assertEqual(dict(replay.at_peak), breakdown)
        active = {block["address"]: block["requested_size"] for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] != "inactive"}
        self.assertEqual(active, {address: event["size"] for address, event in replay.live.items()})
        self.assertEqual(replay.reserved, sum(segment["total_size"] for segment in snapshot["segments"]))

    def test_cpu_ranks_leave_a_snapshot_each_whose_peak_is_the_measured_one(self):
        for ranks in (1, 2):
            done = self.place.run("--snapshot", self.place.path("memory.pickle"), ranks=ranks)
            self.assertEqual(done.returncode, 0, done.stderr)
            for rank in range(ranks):
                with self.subTest(ranks=ranks, rank=rank):
                    path = self.place.path("memory.pickle" if ranks == 1 else f"memory.rank{rank}.pickle")
                    snapshot = self.opened(path)
                    self.check_viewer(path, snapshot)
                    self.check_against(snapshot, record_of(self.place, rank))

    def test_phantom_gpus_leave_what_the_caching_allocator_holds_under_our_labels(self):
        for allocator in ("expandable", "native"):
            with self.subTest(allocator=allocator):
                path = self.place.path(f"{allocator}.pickle")
                done = self.place.run("--snapshot", path, "--device", "phantom", gpus="2xH100-80GB", job=("--allocator", allocator, "--wrap", "layer"))
                self.assertEqual(done.returncode, 0, done.stderr)
                snapshot = self.opened(path)
                self.check_viewer(path, snapshot)
                self.check_against(snapshot, record_of(self.place))
                self.assertEqual({segment["is_expandable"] for segment in snapshot["segments"]} >= {allocator == "expandable"}, True)
                labels = {frame["name"] for event in snapshot["device_traces"][0] for frame in event["frames"] if frame["filename"] == "label"}
                for label in ("layers.0: shard", "layers.1: gathered", "cublas workspace"):
                    self.assertIn(label, labels)

    def test_the_rank_that_is_played_uses_its_own_device(self):
        path = self.place.path("second.pickle")
        done = self.place.run("--snapshot", path, "--device", "phantom", "--ranks", "1", gpus="2xH100-80GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        snapshot = self.opened(path)
        self.assertEqual([bool(trace) for trace in snapshot["device_traces"]], [False, True])
        self.check_against(snapshot, record_of(self.place), device=1)

    def test_running_out_of_memory_leaves_a_snapshot_with_that_moment(self):
        path = self.place.path("oom.pickle")
        self.place.run("--snapshot", path)
        peak = record_of(self.place)["peak_requested_bytes"]
        os.unlink(path)
        done = self.place.run("--snapshot", path, "--budget", str(peak - 1))
        self.assertEqual(done.returncode, 6, done.stderr)
        snapshot = self.opened(path)
        moments = [event for event in snapshot["device_traces"][0] if event["action"] == "oom"]
        self.assertEqual(len(moments), 1)
        self.assertLess(moments[0]["device_free"], moments[0]["size"])


if __name__ == "__main__":
    unittest.main()
