"""rehearse --search: the largest value that fits, several rehearsals at once, kept results, and refusals, with programs that call the CUDA runtime by ctypes."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.join(os.environ["VRAMFIT_SOURCE_DIR"], "tests", "cli"))
from schemas_test import check, load  # noqa: E402

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
ALLOCATE = """import ctypes, sys
gib = int(sys.argv[1])
if gib == int(sys.argv[2]):
    sys.exit(9)
print("allocating")
block = ctypes.c_void_p()
sys.exit(ctypes.CDLL("libcudart.so.13").cudaMalloc(ctypes.byref(block), ctypes.c_size_t(gib << 30)))
"""
# Fails where another of its kind runs, as programs do that meet at a fixed port.
EXCLUSIVE = """import fcntl, os, sys, time
lock = open(sys.argv[3], "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("there is another")
time.sleep(0.3)
exec(open(sys.argv[4]).read())
"""
# In row 1 no value fits, and all but the first would take forever.
STUCK = """import sys, time
row, value = map(int, sys.argv[1:3])
time.sleep(1000 if row == 1 and value > 1 else 0.2)
sys.argv[1:3] = ["100" if row == 1 or value > 5 else "1", "0"]
exec(open(sys.argv[3]).read())
"""
# What it sees of how it was started, beside the allocation.
PLACE = """import os, sys
print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("RANK"), os.environ.get("MASTER_PORT") == "1", sys.flags.optimize, "fractions" in sys.modules)
sys.argv[1:] = [sys.argv[1], "0"]
exec(open(os.path.join(sys.path[0], "allocate.py")).read())
"""
# Leaves its process id and that of a child in a session of its own, and sleeps.
SLEEP = """import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
path = os.path.join(sys.argv[2], sys.argv[1])
with open(path + ".new", "w") as out:
    out.write(f"{os.getpid()} {child.pid}")
os.rename(path + ".new", path)
time.sleep(1000)
"""


def command_of(folder, *flags, program="allocate.py", words=("{gib}", "0")):
    return [VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", *flags, "--", sys.executable, os.path.join(folder, program), *words]


def search(folder, *flags, **choices):
    return subprocess.run(command_of(folder, *flags, **choices), capture_output=True, text=True, timeout=100, check=False)


def is_running(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(what):
    for _ in range(6000):
        if what():
            return
        time.sleep(0.02)
    raise AssertionError("this did not happen within two minutes")


class Search(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        for name, text in (("allocate.py", ALLOCATE), ("exclusive.py", EXCLUSIVE), ("sleep.py", SLEEP), ("stuck.py", STUCK), ("place.py", PLACE)):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as out:
                out.write(text)

    def test_the_largest_that_fits_is_found_and_kept(self):
        flags = ["--search", "gib=70..80", "--cache", os.path.join(self.folder, "cache")]
        first = search(self.folder, *flags)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("largest gib that fits: 78 (78.5 of 79.1 GiB); 79 does not fit\n", first.stdout)
        self.assertIn("gib=79: does_not_fit", first.stderr)
        again = search(self.folder, *flags, "--json")
        found = json.loads(again.stdout)
        schema = load("rehearsal-search.schema.json")
        check(found, schema, schema)
        self.assertEqual(found["rows"][0]["largest"], 78)
        self.assertTrue(all(trial["cached"] for trial in found["rows"][0]["trials"]))
        self.assertNotIn("allocating", again.stderr)

    def test_several_at_once_give_the_same_table_and_answer(self):
        alone, together, chosen = (search(self.folder, "--search", "gib=66..80", "--jobs", jobs) for jobs in ("1", "3", "auto"))
        self.assertEqual((alone.returncode, together.returncode, chosen.returncode), (0, 0, 0), together.stderr)
        self.assertIn("largest gib that fits: 78", alone.stdout)
        self.assertEqual((together.stdout, chosen.stdout), (alone.stdout, alone.stdout))
        self.assertIn("[gib=66] allocating\n", together.stderr)

    def test_one_that_fails_beside_others_is_repeated_alone(self):
        words = ("{gib}", "0", os.path.join(self.folder, "lock"), os.path.join(self.folder, "allocate.py"))
        done = search(self.folder, "--search", "gib=1,2,90", "--jobs", "3", "--json", program="exclusive.py", words=words)
        trials = [row["trials"][0] for row in json.loads(done.stdout)["rows"]]
        self.assertEqual([trial["exit_code"] for trial in trials], [0, 0, 6], done.stderr)

    def test_those_that_turn_out_not_to_be_needed_are_ended_and_the_search_goes_on(self):
        words = ("{row}", "{value}", os.path.join(self.folder, "allocate.py"))
        flags = ["--search", "row=1,2", "--search", "value=1..8"]
        alone, together = (search(self.folder, *flags, "--jobs", jobs, program="stuck.py", words=words) for jobs in ("1", "4"))
        self.assertIn("no value from 1 to 8 fits with row=1\nlargest value that fits with row=2: 5 ", together.stdout, together.stderr)
        self.assertEqual((together.returncode, together.stdout), (0, alone.stdout))

    def check_interrupted(self, number, code, values, flags, left):
        """Rehearsals of `values` that sleep at once, ended with the search by a signal: no process and `left` folders of sessions stay."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        places, sessions = os.path.join(folder, "places"), os.path.join(folder, "sessions")
        os.mkdir(places)
        os.mkdir(sessions)
        command = command_of(self.folder, "--search", "gib=" + ",".join(values), "--jobs", str(len(values)), *flags, program="sleep.py", words=("{gib}", places))
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": sessions}) as done:
            wait_until(lambda: sorted(os.listdir(places)) == values)
            running = len(os.listdir(sessions))
            done.send_signal(number)
            self.assertEqual(done.wait(timeout=100), code)
        processes = []
        for name in os.listdir(places):
            with open(os.path.join(places, name), encoding="utf-8") as file:
                processes += file.read().split()
        # After SIGKILL it is the processes of the rehearsals that end the rest.
        wait_until(lambda: not any(map(is_running, processes)) and len(os.listdir(sessions)) == left)
        return running

    def test_nothing_is_left_of_several_that_are_interrupted(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            self.assertEqual(self.check_interrupted(number, code, ["1", "2", "3"], [], 0), 3)

    def test_forks_of_a_process_with_the_imports_give_the_same_table_and_answer(self):
        words = [VRAMFIT, "rehearse", "--gpus", "2xH100-80GB", "--ranks", "1", "--search", "gib=70..80", "--json"]
        for start in (["-O", "place.py"], ["-O", "-m", "place"]):
            found = {}
            for warm, jobs in (("off", "1"), ("fractions", "1"), ("fractions", "3")):
                done = subprocess.run([*words, "--jobs", jobs, "--warm", warm, "--", sys.executable, *start, "{gib}"], cwd=self.folder, capture_output=True,
                                      text=True, timeout=100, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                said = sorted({line.replace("[gib=78] ", "") for line in done.stderr.splitlines() if "__main__" in line and "'78'" in line})
                found[warm, jobs] = json.loads(re.sub(r"process \d+", "process", done.stdout)), [line.replace("True", "False") for line in said]
                self.assertEqual(said[0].endswith("True"), warm != "off", said)  # it is imported already
            self.assertEqual(found["fractions", "1"], found["off", "1"])
            self.assertEqual(found["fractions", "3"][0], found["off", "1"][0])

    def test_imports_of_a_script_s_head_are_found(self):
        with open(os.path.join(self.folder, "head.py"), "w", encoding="utf-8") as out:
            out.write('"""What it does."""\nimport ctypes, sys\nfrom fractions import Fraction\nSIZE = 1\nimport decimal\nsys.path.append("x")\nimport turtle\n' + ALLOCATE)
        done = search(self.folder, "--search", "gib=1,90", "--warm", "auto", program="head.py")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("s: import ctypes, sys; from fractions import Fraction; import decimal\n", done.stderr)
        self.assertIn("1 of 2 fit", done.stdout)

    def test_what_can_t_be_a_fork_is_refused_by_name_or_said(self):
        script = os.path.join(self.folder, "allocate.py")
        for words, why in ((["torchrun", script, "{gib}"], '"torchrun" starts its own processes'),
                           ([sys.executable, "-m", "torch.distributed.run", script, "{gib}"], "torch.distributed.run starts its own processes"),
                           ([sys.executable, "-I", script, "{gib}"], "Python's flag -I"),
                           ([sys.executable, os.path.join(self.folder, "{gib}.py")], "is no script")):
            done = subprocess.run([VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--search", "gib=1,2", "--warm", "json", "--", *words], capture_output=True, text=True,
                                  timeout=100, check=False)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn("--warm json: ", done.stderr)
            self.assertIn(why, done.stderr)
        done = search(self.folder, "--search", "gib=1,2", "--warm", "no_such_module")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--warm no_such_module: ModuleNotFoundError: No module named 'no_such_module'", done.stderr)
        done = search(self.folder, "--search", "gib=1,2", "--warm", "auto", program="stuck.py", words=("1", "1", script, "{gib}"))
        self.assertNotIn("imports for itself", done.stderr)  # its head is there
        command = [VRAMFIT, "rehearse", "--gpus", "1xH100-80GB", "--search", "gib=1,2", "--warm", "auto", "--", "env", sys.executable, script, "{gib}", "0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--warm auto: each rehearsal imports for itself: ", done.stderr)

    def test_nothing_is_left_of_forks_that_are_interrupted(self):
        self.check_interrupted(signal.SIGINT, 130, ["1", "2"], ["--warm", "json"], 0)
        # What stays is the session of the process with the imports, which the next rehearsal removes.
        self.check_interrupted(signal.SIGKILL, -signal.SIGKILL, ["1", "2"], ["--warm", "json"], 1)

    def test_values_that_are_listed_are_all_tried(self):
        done = search(self.folder, "--search", "gib in 1,90", "--json")
        found, schema = json.loads(done.stdout), load("rehearsal-search.schema.json")
        check(found, schema, schema)
        trials = [row["trials"][0] for row in found["rows"]]
        self.assertEqual([(trial["verdict"], trial["exit_code"]) for trial in trials], [("fits", 0), ("does_not_fit", 6)])
        self.assertEqual(done.returncode, 0)

    def test_a_program_that_fails_is_named_with_its_values(self):
        done = search(self.folder, "--search", "gib=1..8", words=("{gib}", "4"))
        self.assertEqual(done.returncode, 9)
        self.assertIn("gib=4 could not be rehearsed: CMD ended with exit code 9", done.stdout)

    def test_what_makes_no_sense_is_refused(self):
        for flags, why in ((["--search", "gib=1..2", "--keep", "x"], "--keep: is of one rehearsal"), (["--cache", "x"], "--cache: keeps"), (["--jobs", "2"], "--jobs: is how many"),
                           (["--search", "gib=1..2", "--jobs", "0"], "--jobs: \"auto\", or a number: "),
                           (["--search", "gb=1..2"], "CMD has no {gb}"), (["--search", "gib=1..2", "--cache", "/"], "--cache")):
            done = search(self.folder, *flags)
            self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1), done.stderr)
            self.assertIn(why, done.stderr)


if __name__ == "__main__":
    unittest.main()
