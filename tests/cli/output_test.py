"""Where output goes: full disks, closed pipes, FIFOs, devices, closed descriptors; and inputs that never end."""

import json
import os
import re
import shlex
import stat
import subprocess
import tempfile
import unittest

SOURCE = os.environ.get("VRAMFIT_SOURCE_DIR", ".")
BIN = os.environ.get("VRAMFIT_BIN_DIR", "build/bin")
PROGRAM = os.path.join(BIN, "vramfit")
EXECUTOR = os.path.join(BIN, "vramfit-train")
MODEL = os.path.join(SOURCE, "tests", "models", "llama.json")
OOM_LOG = os.path.join(SOURCE, "tests", "cli", "explain", "examples", "ranks.log")
TINY = [MODEL, "--gpus", "1xcpu-1GiB", "--seq-len", "32"]
CARDS = ["--gpus", "2xH100-80GB"]
RUN = ["run", *TINY, "--data", os.path.join(SOURCE, "docs"), "--steps", "1", "--progress", "none"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8"}
HAS_EXECUTOR = os.path.exists(EXECUTOR)
ESCAPE = "\x1b[31m\x07\x9b\n\r"


def shell(line, **settings):
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT, **settings)


def words(*arguments):
    return shlex.join([PROGRAM, *arguments])


class Output(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        self.plan = self.path("plan.json")

    def path(self, name):
        return os.path.join(self.folder, name)

    def device(self, name):
        """/dev/NAME, as root a node of the test's own: a fault would put a file in its place."""
        if os.geteuid() != 0:
            return f"/dev/{name}"
        try:
            os.mknod(self.path(name), 0o666 | stat.S_IFCHR, os.stat(f"/dev/{name}").st_rdev)
            with open(self.path(name), "rb"):
                return self.path(name)
        except PermissionError:
            return self.skipTest("devices can't be made or opened here")

    def made_plan(self):
        self.assertEqual(shell(words("plan", *TINY, "-o", self.plan)).returncode, 0)
        return self.plan

    def commands(self):
        """Every command that prints, in each of its forms."""
        return [["--help"], ["help"], ["help", "run"], ["--version"], ["version"], ["doctor"], ["models"], ["models", "--json"], ["models", MODEL], ["gpus"],
                ["gpus", "--json"], ["completion", "bash"], ["estimate", "--help"], ["estimate", *TINY], ["estimate", *TINY, "--json"], ["estimate", MODEL],
                ["estimate", MODEL, "--format", "accelerate"], ["explain", OOM_LOG], ["explain", OOM_LOG, "--json"], ["plan", *TINY], ["plan", *TINY, "--json"], ["plan", *TINY, "-o", "-"],
                ["plan", *TINY, "-o", "/dev/stdout"]] + HAS_EXECUTOR * [["rehearse", *CARDS, "--", "true"], ["rehearse", *CARDS, "--json", "--", "true"]]

    def test_a_full_disk_is_an_error_of_every_command(self):
        for arguments in self.commands():
            done = shell(words(*arguments) + " >/dev/full")
            self.assertEqual(done.returncode, 1, (arguments, done.stderr))
            self.assertEqual(done.stderr, "vramfit: stdout: can't be written: No space left on device\n", arguments)

    def test_a_reader_that_closed_the_pipe_is_no_error_to_show_and_no_success(self):
        for ignore in ("", "trap '' PIPE; "):  # the second as under Docker, or a daemon that ignores SIGPIPE
            for arguments in (["--help"], ["models"], ["estimate", *TINY], ["plan", *TINY, "-o", "-"]):
                line = f"{ignore}{{ sleep 0.2; {words(*arguments)}; echo $? >&2; }} | true"
                self.assertEqual(shell(line).stderr, "141\n", arguments)

    def test_a_full_file_is_an_error_that_leaves_nothing_behind(self):
        limited = shell(f"ulimit -f 1; trap '' XFSZ; {words('plan', *TINY, '-o', self.plan)}")
        self.assertEqual(limited.returncode, 1, limited.stderr)
        self.assertIn("can't be written: File too large", limited.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_devices_are_written_to_and_stay_devices(self):
        null, full = self.device("null"), self.device("full")
        os.symlink(full, self.path("link"))
        for path in (full, self.path("link")):
            done = shell(words("plan", *TINY, "-o", path))
            self.assertEqual((done.returncode, done.stderr), (1, f"vramfit: {path}: can't be written: No space left on device\n"))
        self.assertEqual(shell(words("plan", *TINY, "-o", null) + " >/dev/null").returncode, 0)
        for path in (null, full):
            self.assertTrue(stat.S_ISCHR(os.lstat(path).st_mode), path)
        self.assertTrue(os.path.islink(self.path("link")))

    def test_fifos_links_and_descriptors_are_written_to_and_stay_what_they_are(self):
        def untimed(text):
            return re.sub(r'"seconds": [\d.e-]+', "", text)
        with open(self.made_plan(), encoding="utf-8") as file:
            plan = untimed(file.read())
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        done = shell(f"cat {fifo} & {words('plan', *TINY, '-o', fifo)} >/dev/null; wait")
        self.assertEqual(untimed(done.stdout), plan)
        self.assertTrue(stat.S_ISFIFO(os.lstat(fifo).st_mode))
        self.assertEqual(untimed(shell(f"{words('plan', *TINY)} -o >(cat) >/dev/null; wait $!").stdout), plan)
        for name in ("-", "/dev/stdout", "/dev/fd/1"):
            self.assertEqual(untimed(shell(words("plan", *TINY, "-o", name)).stdout), plan, name)
        appended = shell(f"echo first >>{self.folder}/log; {words('plan', *TINY, '-o', '/dev/stdout')} >>{self.folder}/log; cat {self.folder}/log")
        self.assertEqual(untimed(appended.stdout), "first\n" + plan)
        os.symlink("plan.json", self.path("link"))
        os.truncate(self.plan, 0)
        self.assertEqual(shell(words("plan", *TINY, "-o", self.path("link"))).returncode, 0)
        self.assertTrue(os.path.islink(self.path("link")))
        with open(self.plan, encoding="utf-8") as file:
            self.assertEqual(untimed(file.read()), plan)

    @unittest.skipUnless(HAS_EXECUTOR, "built without the executor")
    def test_a_rehearsal_hands_its_files_to_fifos_and_stdout(self):
        rehearse = ["rehearse", *CARDS]
        report = shell(words(*rehearse, "-o", "-", "--", "true"))
        self.assertTrue(report.stdout.startswith("{"), report.stdout)
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        done = shell(f"cat {fifo} & {words(*rehearse, '-o', fifo, '--', 'true')} >/dev/null; wait")
        self.assertIn('"vramfit/rehearsal@1"', done.stdout)
        self.assertTrue(stat.S_ISFIFO(os.lstat(fifo).st_mode))

    @unittest.skipUnless(HAS_EXECUTOR, "built without the executor")
    def test_a_command_that_is_rehearsed_ends_at_a_closed_pipe_as_it_would_alone(self):
        done = shell(words("rehearse", *CARDS, "--json", "--", "bash", "-c", "(sleep 0.2; yes; echo $? >&2) | true"))
        self.assertIn("141\n", done.stderr)

    def test_descriptors_that_are_closed_at_the_start_are_taken_for_nothing_else(self):
        for closed in ("<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"):
            other = self.path("other.json")
            self.assertEqual(shell(f"{words('plan', *TINY, '-o', other)} {closed}").returncode, 0, closed)
            with open(other, encoding="utf-8") as file:
                self.assertEqual(json.load(file)["schema"], "vramfit/plan@1", closed)
            if not HAS_EXECUTOR:
                continue
            done = shell(f"{words('rehearse', *CARDS, '--', 'true')} {closed}")
            self.assertEqual(done.returncode, 0, (closed, done.stderr))

    def test_inputs_that_never_end_are_refused_at_once(self):
        plan = self.made_plan()
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        for path in ("/proc/kmsg", fifo, "/dev/zero", "/dev/tty", "/dev/stdin"):
            for arguments in (["compare", path, plan], ["compare", plan, path], ["estimate", *TINY, "--job", path], ["estimate", path, *CARDS],
                              ["run", path, "--data", SOURCE]):
                done = shell(words(*arguments) + " </dev/zero")
                self.assertIn(done.returncode, (1, 2, 5), (arguments, done.stderr))
                self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        script = self.path("script")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!{fifo}\n")
        os.chmod(script, 0o755)
        self.assertEqual(shell(words("rehearse", *CARDS, "--", script)).returncode, 1)


class Echoed(unittest.TestCase):
    """What is said about a value holds nothing that a terminal acts on, and stays one line."""

    def quiet(self, *arguments, lines=1, **variables):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, timeout=60, check=False, env={**ENVIRONMENT, **variables})
        for text in (done.stdout.decode(), done.stderr.decode()):
            self.assertFalse([c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)], (arguments, variables, text))
        self.assertLessEqual(done.stderr.count(b"\n"), lines, (arguments, variables, done.stderr))
        return done

    def flags(self, command):
        text = subprocess.run([PROGRAM, command, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        return {line.split("--")[1].split()[0].rstrip(",") for line in text.splitlines() if line.startswith("  -") or line.startswith("      --")}

    def test_values_of_every_flag_of_every_command(self):
        shared = self.flags("estimate")
        self.assertGreater(len(shared), 30)
        own = {"estimate": shared, "plan": self.flags("plan") - shared, "compare": self.flags("compare"), "rehearse": self.flags("rehearse"),
               "run": {"output", "ranks", "device", "events"}}  # the other flags of run go on to the ranks
        for command, flags in own.items():
            model = {"compare": ["no.json", "no.json"], "rehearse": [], "run": [*TINY, "--data", SOURCE]}.get(command, TINY)
            rest = ["--", "true"] if command == "rehearse" else []
            for flag in flags - {"help", "keep"}:
                given = model if flag != "gpus" else model[:1]
                self.quiet(command, *given, f"--{flag}={f'{MODEL}/' if flag in ('output', 'events', 'trace', 'snapshot') else ''}{ESCAPE}", *rest)

    def test_words_that_are_no_flags_values(self):
        for arguments in ([ESCAPE], ["estimate", ESCAPE, *CARDS], ["estimate", *TINY, ESCAPE], ["estimate", *TINY, f"--{ESCAPE}"], ["models", ESCAPE],
                          ["gpus", ESCAPE], ["completion", ESCAPE], ["help", ESCAPE], ["doctor", "--python", ESCAPE], ["compare", ESCAPE, ESCAPE], ["explain", ESCAPE], ["run", ESCAPE, "--data", SOURCE],
                          ["estimate", *TINY, "--set", ESCAPE], ["estimate", *TINY, "--set", f"{ESCAPE}=1"], ["estimate", *TINY, "--set", f"seq_len={ESCAPE}"],
                          ["estimate", f"{ESCAPE}.json", *CARDS], ["rehearse", *CARDS, "--set", f"{ESCAPE}=1", "--", "true"],
                          ["rehearse", *CARDS, "--", ESCAPE], ["rehearse", *CARDS, "--", "true", ESCAPE], ["rehearse", *CARDS, "--json", "--", "true", ESCAPE]):
            self.quiet(*arguments)

    def test_variables(self):
        for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HOME", "VRAMFIT_HUB_TIMEOUT", "VRAMFIT_CACHE"):
            self.quiet("estimate", "org/name", *CARDS, HF_HUB_OFFLINE="", **{"HF_ENDPOINT": "http://127.0.0.1:1", name: ESCAPE})
        for name in ("PYTORCH_ALLOC_CONF", "TMPDIR", "MASTER_PORT"):
            self.quiet("run", MODEL, "--gpus", "1xH100-80GB", "--data", SOURCE, **{name: ESCAPE})
        for name in ("TMPDIR", "VRAMFIT_PHANTOM_LIB", "PATH"):
            self.quiet("rehearse", *CARDS, "--", "true", **{name: ESCAPE})
        for name in ("HF_HOME", "PYTORCH_ALLOC_CONF", "HF_HUB_OFFLINE"):
            self.quiet("doctor", **{name: ESCAPE})

    def test_names_and_texts_of_files(self):
        with tempfile.TemporaryDirectory() as holder, open(MODEL, encoding="utf-8") as file:
            model = json.load(file)
            folder = os.path.join(holder, ESCAPE)
            os.mkdir(folder)
            for name, text in (("config.json", model), ("other.json", {**model, "model_type": ESCAPE, "architectures": [ESCAPE]}), ("job.json", {ESCAPE: 1}),
                               ("job2.json", {"schema": ESCAPE}), ("plan.json", {"schema": "vramfit/plan@1", ESCAPE: ESCAPE})):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    json.dump(text, file, ensure_ascii=False)
            config, plan = os.path.join(folder, "config.json"), os.path.join(folder, "made.json")
            for arguments in (["estimate", config], ["estimate", config, "--json"], ["plan", config], ["plan", config, "-o", plan]):
                self.assertEqual(self.quiet(*arguments, *TINY[1:]).returncode, 0, arguments)
            self.quiet("models", config)
            self.quiet("estimate", os.path.join(folder, "other.json"), *CARDS)
            self.quiet("compare", plan, os.path.join(folder, "plan.json"))
            self.quiet("compare", os.path.join(folder, "plan.json"), plan)
            for job in ("job.json", "job2.json"):
                self.quiet("estimate", *TINY, "--job", os.path.join(folder, job))


@unittest.skipUnless(HAS_EXECUTOR, "built without the executor")
class OutputOfRuns(unittest.TestCase):
    setUp, path, device = Output.setUp, Output.path, Output.device

    def test_a_run_writes_its_files_to_fifos_and_devices(self):
        names = {"-o": "run", "--trace": "trace", "--snapshot": "snapshot", "--metrics": "metrics"}
        for name in names.values():
            os.mkfifo(self.path(name))
        readers = "".join(f"cat {self.path(name)} >{self.path(name)}.seen & " for name in names.values())
        flags = [part for flag, name in names.items() for part in (flag, self.path(name))]
        done = shell(f"{readers} {words(*RUN, '--trace-steps', '1', *flags)}; code=$?; wait; exit $code")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in names.values():
            self.assertTrue(stat.S_ISFIFO(os.lstat(self.path(name)).st_mode), name)
            self.assertGreater(os.path.getsize(self.path(name) + ".seen"), 100, name)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*names.values(), *(name + ".seen" for name in names.values())]))

    def test_a_run_that_was_started_without_descriptors_ends_well_and_prints_nothing_into_its_sockets(self):
        record = self.path("run.json")
        done = shell(f"{words(*RUN, '-o', record)} <&- >&- 2>&-")
        self.assertEqual(done.returncode, 0)
        self.assertTrue(os.path.getsize(record) > 100)
        plan = self.path("plan.json")
        self.assertEqual(shell(words("plan", *TINY, "-o", plan)).returncode, 0)
        rank = [EXECUTOR, "--plan", plan, "--data", os.path.join(SOURCE, "docs"), "--steps", "1", "-o", record]
        os.remove(record)
        self.assertEqual(shell(f"{shlex.join(rank)} <&- >&- 2>&-").returncode, 0)
        self.assertTrue(os.path.getsize(record) > 100)

    def test_a_run_whose_record_cannot_be_written_fails_and_says_so(self):
        full = self.device("full")
        done = shell(words(*RUN, "-o", full))
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"{full}: can't be written: No space left on device", done.stderr)
        early = shell(words(*RUN, "-o", "/no/such/folder/run.json"))
        self.assertEqual((early.returncode, early.stderr.count("\n")), (1, 1), early.stderr)
        for flag in ("--help", "--support"):
            done = shell(f"{EXECUTOR} {flag} >/dev/full")
            self.assertEqual((done.returncode, done.stderr), (1, "vramfit-train: stdout: can't be written: No space left on device\n"))


if __name__ == "__main__":
    unittest.main()
