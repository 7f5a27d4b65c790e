"""What a run shows while it is running, and the figures that it writes as JSON lines."""

import json
import os
import re
import resource
import signal
import unittest

from observing import Workplace, lines_of, schema_check

BAR = re.compile(r"\r\x1b\[\?7l([^\r]*?)\x1b\[K\x1b\[\?7h")
COLOR = re.compile(r"\x1b\[\d*m")


class Progress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = Workplace()

    @classmethod
    def tearDownClass(cls):
        cls.place.directory.cleanup()

    def bars(self, *flags, **options):
        code, shown = self.place.run_on_terminal(*flags, **options)
        self.assertEqual(code, 0, shown)
        return BAR.findall(shown), shown

    def test_on_a_terminal_one_line_is_rewritten_with_and_without_the_launcher(self):
        for options in ({}, {"launcher": True}, {"ranks": 2}):
            with self.subTest(**options):
                bars, shown = self.bars(**options)
                self.assertEqual(len(bars), 3, shown)
                plain = COLOR.sub("", bars[-1])
                for word in ("step 3/3", "[######", "loss ", "tokens/s", "MFU -", "allocated ", "reserved ", "retries 0", "ETA 0:00"):
                    self.assertIn(word, plain)
                self.assertNotIn("\n", shown[:shown.rindex("step 3/3")], "the bar leaves its line")
                self.assertTrue(shown[shown.rindex("step 3/3"):].count("\n") >= 1, "the last bar's line is not ended")

    def test_a_narrow_terminal_and_a_width_that_is_none_never_make_a_bar_wrap(self):
        for columns, environment, limit in ((40, {}, 40), (160, {"COLUMNS": "50"}, 50), (70, {"COLUMNS": "-1"}, 70), (70, {"COLUMNS": "9" * 40}, 70),
                                            (70, {"COLUMNS": "%s%n"}, 70), (0, {}, 80)):
            with self.subTest(columns=columns, environment=environment):
                bars, shown = self.bars(columns=columns, environment=environment)
                self.assertEqual(len(bars), 3, shown)
                for bar in bars:
                    self.assertLess(len(COLOR.sub("", bar)), limit)

    def test_no_color_means_no_colour(self):
        self.assertRegex(self.bars()[1], COLOR)
        self.assertNotRegex(self.bars(environment={"NO_COLOR": "1"}, launcher=True)[1], COLOR)

    def test_off_a_terminal_every_step_is_a_line_without_escapes(self):
        for options in ({}, {"ranks": 2}):
            done = self.place.run(**options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(re.findall(r"^step (\d)/3  loss \d+\.\d{4}  norm \S+  lr \S+  \d+ tokens/s  peak \S+ GiB$", done.stderr, re.M), ["1", "2", "3"])
            self.assertNotRegex(done.stderr, "[\r\x1b]")
        code, shown = self.place.run_on_terminal("--progress", "lines")
        self.assertEqual((code, len(BAR.findall(shown)), shown.count("tokens/s")), (0, 0, 3))
        code, shown = self.place.run_on_terminal(environment={"TERM": "dumb"})
        self.assertEqual((code, len(BAR.findall(shown)), shown.count("tokens/s")), (0, 0, 3))

    def test_none_shows_nothing_and_a_bar_can_be_had_anywhere(self):
        for options in ({}, {"ranks": 2}):
            done = self.place.run("--progress", "none", **options)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            done = self.place.run("--progress", "bar", **options)
            self.assertEqual(done.stderr.count("]  loss "), 3, done.stderr)
            self.assertNotRegex(done.stderr, "[\r\x1b]")
        done = self.place.run("--progress", "ba", launcher=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn('did you mean "bar"?', done.stderr)

    def test_phantom_gpus_show_neither_losses_nor_speeds(self):
        bars, shown = self.bars("--device", "phantom", gpus="2xH100-80GB")
        self.assertEqual(len(bars), 3, shown)
        for word in ("loss", "tokens/s", "MFU", "ETA"):
            self.assertNotIn(word, "".join(bars))
        self.assertIn("reserved", bars[-1])


class Metrics(unittest.TestCase):
    def setUp(self):
        self.place = Workplace()
        self.addCleanup(self.place.directory.cleanup)
        self.file = self.place.path("metrics.jsonl")

    def lines(self):
        """The file's lines, each as its schema says."""
        checker = schema_check()
        schema = checker.load("metrics.schema.json")
        lines = lines_of(self.file)
        for line in lines:
            checker.check(line, {"$ref": f"#/$defs/{line['event']}"}, schema)
        return lines

    def test_each_step_is_a_line_as_the_schema_says(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.file = self.place.path(f"{ranks}.jsonl")
                done = self.place.run("--metrics", self.file, ranks=ranks)
                self.assertEqual(done.returncode, 0, done.stderr)
                run, *steps = self.lines()
                self.assertEqual((run["event"], run["first_step"], run["steps"], run["ranks"], run["device"]), ("run", 1, 3, ranks, "cpu"))
                self.assertEqual([step["step"] for step in steps], [1, 2, 3])
                for step in steps:
                    self.assertEqual([p["phase"] for p in step["phases"]], ["forward", "loss", "backward", "clip", "optimizer"])
                    self.assertEqual(max(p["peak_allocated_bytes"] for p in step["phases"]), step["peak_allocated_bytes"])
                    self.assertEqual(step["peak_requested_bytes"], step["peak_reserved_bytes"])
                    self.assertAlmostEqual(step["tokens_per_second"], step["tokens"] / step["seconds"], 6)
                    self.assertIsNone(step["mfu"])

    def test_losses_and_peaks_are_those_of_the_run_record(self):
        self.place.run("--metrics", self.file)
        record = record_at(self.place.path("run.json"))
        steps = self.lines()[1:]
        self.assertEqual([step["loss"] for step in steps], record["loss"])
        steady = {p["phase"]: p["peak_requested_bytes"] for p in record["ranks"][0]["phases"] if p["step"] == "steady"}
        self.assertEqual({name: max(p["peak_requested_bytes"] for s in steps[1:] for p in s["phases"] if p["phase"] == name) for name in steady}, steady)

    def test_phantom_gpus_have_no_losses_and_no_speeds(self):
        done = self.place.run("--metrics", self.file, "--device", "phantom", gpus="2xH100-80GB")
        self.assertEqual(done.returncode, 0, done.stderr)
        run, *steps = self.lines()
        self.assertEqual((run["device"], len(steps), run["peak_flops"]), ("phantom", 3, None))
        for step in steps:
            for key in ("loss", "gradient_norm", "tokens_per_second", "mfu"):
                self.assertIsNone(step[key], key)
            self.assertGreater(step["peak_reserved_bytes"], step["peak_allocated_bytes"])
            self.assertGreaterEqual(step["peak_allocated_bytes"], step["peak_requested_bytes"])

    def test_a_run_that_resumes_appends_and_says_from_which_step(self):
        saved = self.place.path("saved")
        self.place.run("--metrics", self.file, "--save", saved, "--save-every", "1")
        for step in (3, 2):
            for name in os.listdir(os.path.join(saved, f"step-{step:08}")):
                os.unlink(os.path.join(saved, f"step-{step:08}", name))
            os.rmdir(os.path.join(saved, f"step-{step:08}"))
        with open(self.file, "a", encoding="utf-8") as f:
            f.write('{"schema": "vramfit/metr')  # a line that a crash cut short
        done = self.place.run("--metrics", self.file, "--resume", saved)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.file, encoding="utf-8") as f:
            lines = f.read().splitlines()
        self.assertEqual(lines.pop(4), '{"schema": "vramfit/metr')
        with open(self.file, "w", encoding="utf-8") as f:
            f.writelines(line + "\n" for line in lines)
        entries = self.lines()
        self.assertEqual([(e["event"], e.get("step", e.get("first_step"))) for e in entries],
                         [("run", 1), ("step", 1), ("step", 2), ("step", 3), ("run", 2), ("step", 2), ("step", 3)])
        self.assertEqual([e["loss"] for e in entries[2:4]], [e["loss"] for e in entries[5:7]])

    def test_a_file_that_cannot_be_written_is_said_before_anything_is_trained(self):
        for path in (self.place.path("nowhere", "metrics.jsonl"), self.place.directory.name, "/dev/full"):
            for options in ({}, {"ranks": 2}):
                done = self.place.run("--metrics", path, **options)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                self.assertIn("--metrics", done.stderr)
                self.assertIn(path, done.stderr)
                self.assertFalse(os.path.exists(self.place.path("run.json")))

    def test_a_disk_that_fills_up_is_warned_of_once_and_training_goes_on(self):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writes beyond the limit then fail as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

        self.place.steps = 12
        done = self.place.run("--metrics", self.file, preexec=limit)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("warning: --metrics"), 1, done.stderr)
        self.assertIn("step 12/12", done.stderr)
        self.assertLessEqual(os.path.getsize(self.file), 8192)
        self.assertEqual(len(record_at(self.place.path("run.json"))["loss"]), 12)


def record_at(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


if __name__ == "__main__":
    unittest.main()
