"""vramfit rehearse around programs that use no GPU: what it refuses, what it passes on, and that nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from schemas_test import check, load

PROGRAM = os.path.join(os.environ.get("VRAMFIT_BIN_DIR", "build/bin"), "vramfit")
CARDS = ["--gpus", "2xH100-80GB"]


def rehearse(*arguments, **variables):
    return subprocess.run([PROGRAM, "rehearse", *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "LC_ALL": "C.UTF-8", **variables})


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def processes_with(variable):
    """Those whose environment holds it."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                if variable.encode() in file.read().split(b"\0"):
                    found.append(int(process))
        except OSError:
            pass  # it ended meanwhile, or is somebody else's
    return found


def await_file(path):
    for _ in range(3000):
        if os.path.exists(path):
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never came")


class Rehearse(unittest.TestCase):
    def setUp(self):
        self.holder = tempfile.TemporaryDirectory()
        self.addCleanup(self.holder.cleanup)
        self.folder = self.holder.name

    def path(self, name, text=None, mode=0o644):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, mode)
        return path

    def refused(self, arguments, code, *words, **variables):
        done = rehearse(*arguments, **variables)
        self.assertEqual(done.returncode, code, (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        self.assertEqual(done.stdout, "", arguments)
        for word in words:
            self.assertIn(word, done.stderr, arguments)

    def test_a_card_that_is_not_in_the_catalog_gets_a_suggestion(self):
        self.refused(["--gpus", "8xH100-80GD", "--", "true"], 2, '"H100-80GD": unknown card', "did you mean H100-80GB")
        self.refused(["--", "true"], 2, "--gpus: missing")
        self.refused(["--gpus", "2xcpu-4GiB", "--", "true"], 2, "CPU ranks need no phantom")

    def test_a_command_that_is_missing_or_not_behind_dashes_is_named(self):
        self.refused(CARDS, 2, "CMD: missing")
        self.refused([*CARDS, "--"], 2, "CMD: missing")
        self.refused([*CARDS, "true"], 2, "true: unknown argument; CMD follows two dashes")
        self.refused([*CARDS, "--timeuot", "3", "--", "true"], 2, 'did you mean "--timeout"?')

    def test_a_command_that_cannot_be_started_is_named_with_the_reason(self):
        self.refused([*CARDS, "--", "no-such-program"], 2, 'CMD "no-such-program": no such program in PATH')
        self.refused([*CARDS, "--", "./no/such"], 2, 'CMD "./no/such": no such file')
        self.refused([*CARDS, "--", self.path("train.py", "print(1)\n")], 2, "train.py", "can't be executed")
        script = self.path("moved", "#!/no/such/python\n", 0o755)
        self.refused([*CARDS, "--", script], 1, "moved: can't be started", "interpreter")

    def test_launchers_that_are_not_played_are_refused_for_one_rank_with_the_command_to_use_instead(self):
        one = [*CARDS, "--ranks", "1", "--"]
        for command, instead in ((["horovodrun", "-np", "2", "train.py", "--a", "b c"], "-- python train.py --a 'b c'"),
                                 (["/opt/bin/python3.11", "-m", "composer.cli.launcher", "t.py"], "-- /opt/bin/python3.11 t.py"),
                                 (["composer", "-n", "2", "python", "train.py"], "-- python train.py"),
                                 (["colossalai", "run", "prog"], "-- PROGRAM ...")):
            self.refused([*one, *command], 2, command[0].rpartition("/")[2], "starts ranks", "--ranks 1 " + instead)

    def test_ranks_outside_the_cluster_and_nodes_that_one_launcher_cannot_fill_are_refused(self):
        self.refused([*CARDS, "--ranks", "2", "--", "true"], 2, "--ranks", "2 is outside 0 to 1")
        self.refused([*CARDS, "--ranks", "some", "--", "true"], 2, '"all", "worst", or one rank')
        for flags, why in ((["--snapshot", "x"], "--snapshot: is of one rehearsal"), (["--search", "a=1,2"], "--ranks worst: plays several")):
            self.refused([*CARDS, "--ranks", "worst", *flags, "--", "echo", "{a}"], 2, why)

    def test_settings_that_do_not_exist_are_refused(self):
        for value, word in (("adresses=ascending", 'did you mean "addresses"?'), ("addresses=up", "up"), ("completion=late:x", "x"),
                            ("real-bytes=-1", "-1"), ("routing=bad", "bad"), ("selected=2", "2"), ("trace", "trace")):
            self.refused([*CARDS, "--set", value, "--", "true"], 2, word)
        self.refused([*CARDS, "--timeout", "0", "--", "true"], 2, "--timeout")
        self.refused([*CARDS, "--snapshot", "/no/such/folder/s.pickle", "--", "true"], 2, "--snapshot", "can't be written")

    def test_places_that_cannot_be_written_are_named(self):
        self.refused([*CARDS, "--", "true"], 1, "TMPDIR /no/such/folder", "No such file", TMPDIR="/no/such/folder")
        model = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "tests", "models", "llama.json")
        run = subprocess.run([PROGRAM, "run", model, "--gpus", "1xcpu-1GiB", "--data", "x"], capture_output=True, text=True, timeout=60, check=False,
                             env={**os.environ, "TMPDIR": "/no/such/folder"})
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertIn("TMPDIR /no/such/folder", run.stderr)
        self.path("used", "")
        self.refused([*CARDS, "--keep", self.folder, "--", "true"], 2, "--keep", "not an empty folder")
        self.refused([*CARDS, "--", "true"], 1, "VRAMFIT_PHANTOM_LIB", VRAMFIT_PHANTOM_LIB=self.folder)

    def test_the_command_gets_its_words_and_its_stdin_untouched_and_its_exit_code_is_returned(self):
        code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.exit(37)"
        words = ["[1,2]", "", "--", "--json", "-h", "a b", "\x01"]
        done = subprocess.run([PROGRAM, "rehearse", *CARDS, "--", sys.executable, "-c", code, *words], input="in", text=True,
                              capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 37, done.stderr)
        self.assertEqual(done.stdout.splitlines()[0], f"{words} in")
        self.assertIn("FAILED: CMD ended with exit code 37 (rehearsed on phantom GPUs)", done.stdout)

    def test_a_command_that_kills_itself_is_said_to_have_been_ended_by_that_signal(self):
        done = rehearse(*CARDS, "--", "sh", "-c", "kill -SEGV $$")
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV, done.stderr)
        self.assertIn("ended by signal 11 (SEGV)", done.stdout)

    def test_json_is_alone_on_stdout_and_as_its_schema_says(self):
        done = rehearse(*CARDS, "--json", "--", "sh", "-c", "echo printed; exit 3")
        self.assertEqual(done.returncode, 3)
        self.assertIn("printed", done.stderr)
        document = json.loads(done.stdout)
        schema = load("rehearsal.schema.json")
        check(document, schema, schema)
        self.assertEqual((document["verdict"], document["exit_code"], document["ranks"], document["worst"]), ("failed", 3, [], -1))

    def test_a_program_that_opens_no_gpu_library_is_reported_as_such(self):
        done = rehearse(*CARDS, "--", "true")
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.startswith("NO GPU USED: "), done.stdout)

    def test_a_program_that_empties_its_environment_does_not_get_a_real_gpu(self):
        code = """
import ctypes, os
os.environ.clear()
ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 30))
"""
        done = rehearse(*CARDS, "--", sys.executable, "-c", code)
        self.assertIn("VRAMFIT_PHANTOM does not name a session folder", done.stderr)

    def test_paged_memory_is_shown_beside_what_is_on_the_card(self):
        code = """
import ctypes
cuda, taken = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
def take(function, gib, *more):
    assert function(ctypes.byref(taken), ctypes.c_size_t(gib << 30), *more) == 0
take(cuda.cudaMalloc, 10)
take(cuda.cudaMallocManaged, 2, 1)
assert cuda.cudaFree(taken) == 0
take(cuda.cudaMallocManaged, 6, 1)
"""
        document = json.loads(rehearse("--gpus", "T4", "--json", "--", sys.executable, "-c", code).stdout)
        (rank,) = document["ranks"]
        context = document["cluster"]["card"]["context_bytes"]
        self.assertEqual((rank["managed_bytes"], rank["total_bytes"]), (6 << 30, (10 << 30) + context))
        self.assertEqual(rank["upper_bound_bytes"], document["capacity_bytes"])  # a T4 has no room for all 16 GiB
        text = rehearse("--gpus", "T4", "--", sys.executable, "-c", code).stdout
        self.assertRegex(text, r"paged \(managed\) memory, in addition +6\.0\n")

    def test_a_card_with_an_l2_of_its_own_reports_that(self):
        code = """
import ctypes
size = ctypes.c_int()
assert ctypes.CDLL("libcudart.so.13").cudaDeviceGetAttribute(ctypes.byref(size), 38, 0) == 0
print(size.value >> 20)
"""
        for card, mib in (("H200", "60"), ("H100-80GB", "50")):
            self.assertEqual(rehearse("--gpus", card, "--", sys.executable, "-c", code).stdout.splitlines()[0], mib)

    def test_one_rank_gets_the_variables_that_torchrun_would_set(self):
        names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"]
        done = rehearse("--gpus", "4x8xH100-80GB", "--ranks", "17", "--", sys.executable, "-c",
                        f"import os; print([os.environ[name] for name in {names}], int(os.environ['MASTER_PORT']) > 0)")
        self.assertEqual(done.stdout.splitlines()[0], "['17', '1', '32', '8', '127.0.0.1', 'True', '0'] True", done.stderr)

    def test_the_session_folder_is_private_and_removed_unless_it_is_kept(self):
        show = 'ls -ld "$VRAMFIT_PHANTOM"; echo "$VRAMFIT_PHANTOM"; cat "$VRAMFIT_PHANTOM/session.json"'
        lines = rehearse(*CARDS, "--", "sh", "-c", show, TMPDIR=self.folder).stdout.splitlines()
        self.assertTrue(lines[0].startswith("drwx------"), lines)
        self.assertTrue(lines[1].startswith(self.folder), lines)
        self.assertEqual(os.listdir(self.folder), [])
        kept = self.path("kept")
        rehearse(*CARDS, "--set", "addresses=shuffled:7,completion=late:3,real_bytes=9,routing=worst,selected=0.5,float-bytes=8", "--keep", kept, "--", "true")
        with open(os.path.join(kept, "session.json"), encoding="utf-8") as file:
            session = json.load(file)
        self.assertEqual(session["settings"], {"addresses": "shuffled:7", "completion": "late:3", "real_bytes": 9, "trace": False, "values": "computed",
                                               "routing": "worst", "selected": 0.5, "integer_bytes": 67108864, "float_bytes": 8, "workspaces": "zero"})
        self.assertEqual(session["card"]["name"], "NVIDIA H100 80GB HBM3")
        self.assertIn(f'"context_bytes": {767 << 20},', rehearse("--gpus", "1xH200", "--", "sh", "-c", show).stdout)  # of PyTorch's programs

    def test_a_hanging_command_is_ended_with_all_that_it_started_even_in_sessions_of_their_own(self):
        pids = self.path("pids")
        script = f"trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; while :; do sleep 0.1; done' & echo $$ >> {pids}; wait"
        done = rehearse(*CARDS, "--timeout", "5", "--", "sh", "-c", script)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(done.stdout.startswith("TIMED OUT"), done.stdout)
        with open(pids, encoding="utf-8") as file:
            started = file.read().split()
        self.assertEqual(len(started), 2)
        for process in started:
            self.assertFalse(is_running(process), process)

    def test_processes_that_the_command_leaves_running_are_ended_and_mentioned(self):
        pids = self.path("pids")
        done = rehearse(*CARDS, "--", "sh", "-c", f"setsid sleep 600 & echo $! > {pids}")
        self.assertIn("1 processes that CMD left running were ended", done.stdout)
        with open(pids, encoding="utf-8") as file:
            self.assertFalse(is_running(file.read().strip()))

    def test_a_program_that_keeps_forking_does_not_outlive_its_rehearsal(self):
        mark = f"VRAMFIT_TEST_MARK={os.path.basename(self.folder)}"
        # Each link of the chain forks, leaves the session and ends; it stops by itself after a minute.
        chain = ("import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nuntil = time.monotonic() + 60\n"
                 "while time.monotonic() < until:\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n")
        done = rehearse(*CARDS, "--", "env", mark, sys.executable, "-c", chain)
        self.assertRegex(done.stdout, "[0-9]+ processes that CMD left running were ended")
        self.assertNotIn("may still run", done.stdout)
        self.assertEqual(processes_with(mark), [])

    def test_what_killed_commands_left_in_tmpdir_is_swept_at_the_next_start(self):
        begun = self.path("begun")
        hang = [PROGRAM, "rehearse", *CARDS, "--", "sh", "-c", f"echo > {begun}; exec sleep 600"]
        others = [self.path("tmp/vramfit-run-notes"), self.path("tmp/vramfit-rehearsal-link01")]
        os.makedirs(others[0])
        os.makedirs(self.path("precious/file"))
        os.symlink(self.path("precious"), others[1])
        os.makedirs(self.path("tmp/vramfit-run-a1b2c3/left-by-an-earlier-run"))
        variables = {"TMPDIR": self.path("tmp")}

        def left():
            return sorted(os.path.join(self.path("tmp"), name) for name in os.listdir(self.path("tmp")))

        for signal_number, sweep in ((signal.SIGKILL, ["rehearse", *CARDS, "--", "true"]),
                                     (signal.SIGUSR1, ["run", "no-such-plan.json", "--data", "no-such-file"])):
            child = subprocess.Popen(hang, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)
            await_file(begun)
            os.remove(begun)
            in_use = set(left()) - set(others)
            subprocess.run([PROGRAM, *sweep], env={**os.environ, **variables}, capture_output=True, timeout=60, check=False)
            kept = set(left()) - set(others)
            self.assertEqual(len(kept), 1)  # the one that is running
            self.assertLessEqual(kept, in_use)
            child.send_signal(signal_number)
            child.wait()
            self.assertEqual(set(left()) - set(others), kept)
            subprocess.run([PROGRAM, *sweep], env={**os.environ, **variables}, capture_output=True, timeout=60, check=False)
            self.assertEqual(left(), sorted(others))
        self.assertTrue(os.path.isdir(self.path("precious/file")))

    def test_a_signal_is_passed_on_and_gives_128_and_its_number(self):
        ready, got = self.path("ready"), self.path("got")
        script = f"trap 'echo yes > {got}; exit 0' TERM; echo > {ready}; while :; do sleep 0.05; done"
        child = subprocess.Popen([PROGRAM, "rehearse", *CARDS, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        await_file(ready)
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 128 + signal.SIGTERM)
        self.assertTrue(output.startswith("INTERRUPTED: by signal 15"), output)
        self.assertTrue(os.path.exists(got))

    def test_the_command_does_not_outlive_a_rehearsal_that_is_killed(self):
        pid = self.path("pid")
        child = subprocess.Popen([PROGRAM, "rehearse", *CARDS, "--keep", self.path("kept"), "--", "sh", "-c",
                                  f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"])
        await_file(pid)
        child.kill()
        child.wait()
        with open(pid, encoding="utf-8") as file:
            process = file.read().strip()
        for _ in range(3000):
            if not is_running(process):
                return
            time.sleep(0.02)
        self.fail("the command is still running")

    def test_a_rehearsal_is_compared_with_a_plan_by_peaks_and_phases(self):
        model = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "tests", "models", "llama.json")
        plan, rehearsal = self.path("plan.json"), self.path("rehearsal.json")
        subprocess.run([PROGRAM, "plan", model, "--gpus", "2xH100-80GB", "--seq-len", "64", "-o", plan], check=True, capture_output=True)
        document = json.loads(rehearse(*CARDS, "--json", "--", "true").stdout)
        with open(plan, encoding="utf-8") as file:
            predicted = json.load(file)["ranks"][0]
        rank = {key: predicted[key] for key in ("ranks", "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "total_bytes",
                                                "upper_bound_bytes", "alloc_retries")}
        rank |= {"card": 0, "source": "torch", "steps": 2, "pinned_bytes": 0, "out_of_memory_count": 0, "out_of_memory": [],
                 "breakdown": {"allocated": 1, "fragmentation": 2, "outside_allocator": 3},
                 "phases": [phase for phase in predicted["phases"] if phase["phase"] in ("load", "backward", "optimizer")]}
        document |= {"verdict": "fits", "ranks": [rank], "worst": 0}

        def compare(expected, **changes):
            with open(rehearsal, "w", encoding="utf-8") as file:
                json.dump({**document, **changes}, file)
            done = subprocess.run([PROGRAM, "compare", plan, rehearsal], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
            return done

        text = compare(0).stdout
        self.assertTrue(text.startswith("WITHIN TOLERANCE: peak allocated +0.00 %"), text)
        self.assertIn("rehearsed", text)
        self.assertIn("backward, steady", text)
        compare(7, ranks=[{**rank, "peak_allocated_bytes": 2 * rank["peak_allocated_bytes"]}])
        self.assertIn("only a rehearsal that came to its end", compare(2, verdict="does_not_fit").stderr)
        self.assertIn("ranks[0].source", compare(2, ranks=[{**rank, "source": "driver"}]).stderr)
        self.assertIn("worst", compare(2, ranks=[]).stderr)


if __name__ == "__main__":
    unittest.main()
