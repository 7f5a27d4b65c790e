"""compare --events: an exact run is found equal allocation by allocation, and the first allocation that differs is named."""

import json
import os
import re
import subprocess
import unittest

from place import BIN, Place, contents


class CompareEvents(Place):
    def compare(self, *flags):
        command = [os.path.join(BIN, "vramfit"), "compare", self.path("plan.json"), self.path("run.json"), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def rewrite(self, change):
        """Rank 1's lines as `change` leaves them."""
        path = self.path("events/rank1.jsonl")
        lines = change(self.lines)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)

    def first_difference(self, change):
        self.rewrite(change)
        done = self.compare("--events", self.path("events"), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)  # the peaks are as before
        by_rank = {entry["rank"]: entry for entry in json.loads(done.stdout)["events"]}
        self.assertEqual(by_rank[0]["first_difference"], "")
        return by_rank[1]

    def test_the_first_allocation_that_differs_is_named(self):
        self.plan("2xcpu-1GiB")
        ran = subprocess.run([os.path.join(BIN, "vramfit"), "run", self.path("plan.json"), *self.flags(), "--events", self.path("events"),
                              "-o", self.path("run.json")], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.lines = [json.loads(line) for line in contents(self.path("events/rank1.jsonl")).splitlines()]
        self.equal_runs()
        self.one_that_differs()
        self.what_cannot_be_compared()

    def test_what_saving_gathers_is_as_predicted(self):
        self.plan("2xcpu-1GiB", "--sharding", "full-shard", "--method", "lora")
        compared = {}
        for kinds in ((), ("adapters",), ("adapters", "full")):
            saving = [word for kind in kinds for word in (f"--save-{kind}", self.path(kind))]
            ran = subprocess.run([os.path.join(BIN, "vramfit"), "run", self.path("plan.json"), *self.flags(steps=2), "--events", self.path("events"),
                                  "-o", self.path("run.json"), *saving], capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            text = self.compare("--events", self.path("events")).stdout
            compared[kinds] = {int(number) for number in re.findall(r"rank [01]: all (\d+) are as predicted", text)}
            self.assertEqual(text.count("are as predicted"), 2, text)
            self.assertEqual(text.count("the run saves"), len(kinds), text)
        numbers = [min(found) for found in compared.values()]
        self.assertTrue(numbers[0] < numbers[1] < numbers[2], compared)  # adapters are gathered, and then all else too

    def equal_runs(self):
        self.assertEqual(max(line["step"] for line in self.lines), 3)  # of which two are compared
        text = self.compare("--events", self.path("events")).stdout
        allocations = sum(line["bytes"] > 0 and line["step"] <= 2 for line in self.lines)
        self.assertGreater(allocations, 100)
        for rank in (0, 1):
            self.assertRegex(text, rf"rank {rank}: all \d+ are as predicted")

    def one_that_differs(self):
        place = next(i for i, line in enumerate(self.lines) if line["phase"] == "backward" and line["step"] == 2 and line["bytes"] > 0)
        changed = {**self.lines[place], "bytes": self.lines[place]["bytes"] + 512}
        found = self.first_difference(lambda lines: [*lines[:place], changed, *lines[place + 1:]])
        for words in (f'measured +{changed["bytes"]} bytes of "{changed["label"]}" in backward of step 2', f'predicted +{changed["bytes"] - 512} bytes'):
            self.assertIn(words, found["first_difference"])
        self.assertGreater(found["compared"], 100)
        found = self.first_difference(lambda lines: [{**line, "label": "nobody's"} if i == place else line for i, line in enumerate(lines)])
        self.assertIn('"nobody\'s"', found["first_difference"])
        found = self.first_difference(lambda lines: [line for i, line in enumerate(lines) if i != place])
        self.assertIn(f'predicted +{changed["bytes"] - 512} bytes of "{changed["label"]}"', found["first_difference"])

    def what_cannot_be_compared(self):
        for lines, words in ((["[]\n"], "rank1.jsonl, line 1"), ([*self.lines[:3], "{\n"], "line 4"), ([{**self.lines[0], "phase": "naptime"}], "naptime"),
                             ([{**self.lines[0], "bytes": 2 ** 62}], "bytes"), ([{**self.lines[0], "more": 1}], "more")):
            self.rewrite(lambda _, new=lines: new)
            done = self.compare("--events", self.path("events"))
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        done = self.compare("--events", self.path("elsewhere"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("has no rankN.jsonl of this run", done.stderr)


if __name__ == "__main__":
    unittest.main()
