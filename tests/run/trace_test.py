"""Chrome traces: what chrome://tracing and Perfetto need to open them, and that tracing changes nothing else."""

import json
import os
import unittest

from observing import Workplace

# Keys of the Trace Event Format that we use, by phase of the event.
KEYS = {"M": {"name", "ph", "pid", "tid", "args"}, "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
        "b": {"name", "cat", "ph", "id", "ts", "pid", "tid", "args"}, "e": {"name", "cat", "ph", "id", "ts", "pid", "tid", "args"},
        "C": {"name", "cat", "ph", "ts", "pid", "tid", "args"}}
INSTRUCTIONS = {"begin", "issue", "wait", "forward", "release", "recompute", "backward", "reduce", "finish", "end", "clip", "step"}


def load(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def contents(path):
    with open(path, "rb") as f:
        return f.read()


class Trace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace(steps=4)

    @classmethod
    def tearDownClass(cls):
        cls.place.directory.cleanup()

    def checked(self, path, rank=0):
        """The events of a file that is sound: known keys, rising times, spans that nest, and collectives that end."""
        document = load(path)
        self.assertEqual(set(document), {"displayTimeUnit", "otherData", "traceEvents"})
        events = document["traceEvents"]
        open_spans, flights, last = [], {}, 0
        for event in events:
            self.assertEqual(set(event), KEYS[event["ph"]], event)
            self.assertEqual(event["pid"], rank)
            if event["ph"] == "M":
                continue
            self.assertGreaterEqual(event["ts"], last, "times fall")
            last = event["ts"]
            if event["ph"] == "X":
                while open_spans and open_spans[-1]["ts"] + open_spans[-1]["dur"] <= event["ts"] + 1e-5:
                    open_spans.pop()
                around = {"step": None, "instruction": "step", "op": "instruction"}[event["cat"]]
                self.assertEqual(open_spans[-1]["cat"] if open_spans else None, around, event)
                if around:
                    outer = open_spans[-1]
                    self.assertLessEqual(event["ts"] + event["dur"], outer["ts"] + outer["dur"] + 1e-5)
                    self.assertEqual(event["args"]["step"], outer["args"]["step"])
                open_spans.append(event)
            elif event["ph"] == "b":
                self.assertNotIn(event["id"], flights)
                flights[event["id"]] = event["name"]
            elif event["ph"] == "e":
                self.assertEqual(flights.pop(event["id"]), event["name"])
        self.assertEqual(flights, {}, "collectives without an end")
        return events

    def test_a_trace_has_the_chosen_steps_with_their_instructions_ops_and_memory(self):
        path = self.place.path("one.json")
        done = self.place.run("--trace", path, job=("--checkpointing", "full", "--global-batch", "2", "--grad-accum", "2"))
        self.assertEqual(done.returncode, 0, done.stderr)
        events = self.checked(path)
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual([e["name"] for e in spans if e["cat"] == "step"], ["step 2", "step 3"])
        instructions = [e for e in spans if e["cat"] == "instruction"]
        self.assertLessEqual({e["name"].split()[0] for e in instructions}, INSTRUCTIONS)
        for name in ("forward layers.0", "recompute layers.0", "backward layers.0", "clip", "step"):
            self.assertIn(name, {e["name"] for e in instructions})
        self.assertEqual({e["args"].get("micro_batch") for e in instructions}, {0, 1, None})
        self.assertEqual({e["args"]["phase"] for e in instructions}, {"forward", "loss", "backward", "clip", "optimizer"})
        by_step = [[e["name"] for e in instructions if e["args"]["step"] == step] for step in (2, 3)]
        self.assertEqual(*by_step)
        ops = [e for e in spans if e["cat"] == "op"]
        self.assertEqual({e["args"]["pass"] for e in ops}, {"forward", "recompute", "backward"})
        self.assertTrue(all(e["name"].startswith(e["args"]["segment"] + ".") for e in ops))
        memory = {name: [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == name] for name in ("allocated bytes", "reserved bytes")}
        self.assertGreaterEqual(len(memory["allocated bytes"]), len(instructions))
        self.assertGreater(max(memory["allocated bytes"]), min(memory["allocated bytes"]))
        self.assertEqual(*memory.values())

    def test_every_rank_leaves_a_file_with_its_collectives(self):
        done = self.place.run("--trace", self.place.path("many.json"), "--trace-steps", "4", ranks=2, job=("--sharding", "full-shard"))
        self.assertEqual(done.returncode, 0, done.stderr)
        flights = []
        for rank in range(2):
            events = self.checked(self.place.path(f"many.rank{rank}.json"), rank)
            self.assertEqual([e["name"] for e in events if e.get("cat") == "step"], ["step 4"])
            flights.append([(e["name"], e["args"]["group"], e["args"]["bytes"], e["args"].get("unit")) for e in events if e["ph"] == "b"])
        self.assertEqual(*flights)
        self.assertEqual({name for name, *_ in flights[0]}, {"all-gather", "reduce-scatter", "all-reduce"})
        self.assertTrue(all(size > 0 for _, _, size, _ in flights[0]))
        self.assertTrue(all(unit for name, _, _, unit in flights[0] if name == "all-gather"))

    def test_on_phantom_gpus_reserved_is_above_allocated_and_times_are_said_to_be_launches(self):
        path = self.place.path("phantom.json")
        done = self.place.run("--trace", path, "--device", "phantom", gpus="2xH100-80GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        events = self.checked(path)
        self.assertIn("launched", load(path)["otherData"]["clock"])
        memory = {name: [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == name] for name in ("allocated bytes", "reserved bytes")}
        for allocated, reserved in zip(*memory.values(), strict=True):
            self.assertGreater(reserved, allocated)

    def test_steps_that_never_come_and_wrong_ones_are_usage_errors(self):
        path = self.place.path("late.json")
        for steps in ("10-12", "2-30", "3-2", "0", "-1", "a", "2-", "1-2-3", ""):
            done = self.place.run("--trace", path, f"--trace-steps={steps}")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("--trace-steps", done.stderr)

    def test_a_file_that_cannot_be_written_is_said_before_anything_is_trained(self):
        for flag in ("--trace", "--snapshot"):
            for path in (self.place.path("nowhere", "file"), self.place.directory.name):
                done = self.place.run(flag, path)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                self.assertIn(f"{flag}: {path}", done.stderr)

    def test_watching_changes_no_allocation_and_no_loss(self):
        for options in ({"ranks": 2}, {"gpus": "2xH100-80GB"}):
            left = []
            for name, watched in (("plain", False), ("watched", True)):
                folder = self.place.path(f"{name}-{len(options.get('gpus', ''))}")
                os.makedirs(folder)
                flags = ["--events", folder] + (["--device", "phantom"] if "gpus" in options else [])
                if watched:
                    flags += ["--trace", os.path.join(folder, "trace.json"), "--snapshot", os.path.join(folder, "memory.pickle"),
                              "--metrics", os.path.join(folder, "metrics.jsonl")]
                done = self.place.run(*flags, **options)
                self.assertEqual(done.returncode, 0, done.stderr)
                record = load(self.place.path("run.json"))
                left.append(([contents(os.path.join(folder, f)) for f in sorted(os.listdir(folder)) if f.startswith("rank")], record["loss"], record["ranks"][0]["phases"]))
            self.assertTrue(left[0][0])
            self.assertEqual(*left)


if __name__ == "__main__":
    unittest.main()
