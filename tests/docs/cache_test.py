"""The scripts run nothing out of a cache that somebody else may have filled."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

SCRIPTS = os.path.join(os.environ.get("VRAMFIT_SOURCE_DIR", "."), "scripts")
NOBODY = 12345


def bash(line, **variables):
    return subprocess.run(["bash", "-c", f"source {SCRIPTS}/common.sh; {line}"], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, **variables})


class Cache(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.cache = os.path.join(holder.name, "cache")
        os.makedirs(os.path.join(self.cache, "ccache"))

    def refused(self, line, words):
        done = bash(line, VRAMFIT_CACHE=self.cache, CCACHE_DIR="")
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)

    def test_a_folder_that_others_may_write_to_is_refused_before_it_is_used(self):
        for mode in (0o777, 0o1777, 0o775):
            os.chmod(self.cache, mode)
            self.refused("lock setup; echo locked", f"others may write to {self.cache}")
            self.refused("build release; echo built", f"others may write to {self.cache}")
        os.chmod(self.cache, 0o755)
        os.chmod(os.path.join(self.cache, "ccache"), 0o777)
        self.refused("build release; echo built", "others may write to")
        self.assertEqual(bash("lock setup; echo locked", VRAMFIT_CACHE=self.cache).stdout, "locked\n")

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a folder away")
    def test_a_folder_of_another_user_is_refused(self):
        environment = os.path.join(self.cache, "venv", "0123456789abcdef")
        os.makedirs(os.path.join(environment, "bin"))
        for folder in (self.cache, os.path.dirname(environment), environment, os.path.join(environment, "bin")):
            os.chown(folder, NOBODY, NOBODY)
            self.refused('trust "$VRAMFIT_CACHE" "$VRAMFIT_CACHE"/venv{,/0123456789abcdef{,/bin}}; echo trusted', f"{folder} belongs to another user")
            os.chown(folder, 0, 0)

    @unittest.skipUnless(os.geteuid() == 0, "only root can give a folder away")
    def test_setup_uses_no_environment_that_another_user_left(self):
        root = os.path.join(os.path.dirname(self.cache), "project")
        shutil.copytree(SCRIPTS, os.path.join(root, "scripts"))
        tools = os.path.join(root, "tools")
        os.mkdir(tools)
        # A Python that makes no environment, enough space, and no installing: setup gets as far as naming the folder it wants.
        for name, does in (("python", '[[ $1 != -c ]] && exit 1; [[ $2 == *SOABI* ]] && echo tag; exit 0'),
                           ("df", "printf 'head\\na b c 99999999999\\n'"), ("apt-get", "exit 1")):
            path = os.path.join(tools, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/bash\n{does}\n")
            os.chmod(path, 0o755)
        environment = {**os.environ, "VRAMFIT_CACHE": self.cache, "PATH": f"{tools}:{os.environ['PATH']}"}
        environment.pop("VRAMFIT_VENV", None)

        def setup():
            return subprocess.run([os.path.join(root, "scripts", "setup")], capture_output=True, text=True, timeout=60, check=False,
                                  env={**environment, "VRAMFIT_PYTHON": "python"})
        first = setup().stderr
        wanted = re.search(f"python: making ({re.escape(self.cache)}/venv/[0-9a-f]+)", first)
        self.assertIsNotNone(wanted, first)
        planted = os.path.join(wanted[1], "bin", "python")
        os.makedirs(os.path.dirname(planted))
        shutil.copy(os.path.join(tools, "python"), planted)
        self.assertEqual(setup().returncode, 0)
        os.remove(os.path.join(root, ".venv"))
        os.chown(wanted[1], NOBODY, NOBODY)
        done = setup()
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn(f"{wanted[1]} belongs to another user", done.stderr)
        self.assertFalse(os.path.lexists(os.path.join(root, ".venv")))

    def test_programs_of_an_environment_find_their_python_under_its_last_name(self):
        environment = os.path.join(self.cache, "venv", "0123")
        program = os.path.join(environment + ".partial", "bin", "torchrun")
        os.makedirs(os.path.dirname(program))
        with open(program, "w", encoding="utf-8") as file:
            file.write(f"#!{os.path.dirname(program)}/python\nprint('started')\n")
        os.chmod(program, 0o755)
        os.symlink(shutil.which("python3"), os.path.join(os.path.dirname(program), "python"))
        done = bash(f'name_environment "{environment}" && "{environment}/bin/torchrun"', VRAMFIT_CACHE=self.cache)
        self.assertEqual(done.stdout, "started\n", done.stderr)
        self.assertTrue(os.path.islink(os.path.join(environment, "bin", "python")))
        self.assertFalse(os.path.exists(environment + ".partial"))

    def test_what_is_made_in_the_cache_can_be_written_by_nobody_else(self):
        self.assertEqual(bash("umask 000; source scripts/common.sh; umask", VRAMFIT_CACHE=self.cache).stdout, "0022\n")


if __name__ == "__main__":
    unittest.main()
