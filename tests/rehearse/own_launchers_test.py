"""--ranks R with launchers that start ranks in a way of their own: mpirun, srun and deepspeed become rank R, directly, in a shell script,
and where they are not installed. The programs use no GPU. DeepSpeed is a stand-in with the functions that its launcher's parts call.
"""
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

VRAMFIT = os.path.join(os.environ["VRAMFIT_BIN_DIR"], "vramfit")
SHOW = """import json, os, sys
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "shown"), "w") as file:
    json.dump([sys.argv[1:], dict(os.environ), os.getcwd()], file)
"""
RUNNER = """import argparse, base64, json, os, subprocess, sys
def fetch_hostfile(path):
    if not os.path.isfile(path):
        return {}
    with open(path) as file:
        return {line.split()[0]: int(line.split("=")[1]) for line in file}
def parse_args(args=None):
    parser = argparse.ArgumentParser()
    for flag, default in (("--hostfile", "/none"), ("--launcher", "pdsh"), ("--master_addr", "")):
        parser.add_argument(flag, default=default)
    parser.add_argument("--num_gpus", type=int, default=2)
    parser.add_argument("--no_ssh", action="store_true")
    parser.add_argument("--node_rank", type=int, default=-1)
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER)
    return parser.parse_args(args)
def main():
    args = parse_args()
    hosts = fetch_hostfile(args.hostfile)
    if hosts and not args.no_ssh:
        sys.exit("would use ssh")
    world = {host: list(range(slots)) for host, slots in hosts.items()} or {"localhost": list(range(args.num_gpus))}
    code = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    words = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", code, str(max(0, args.node_rank)), args.script, *args.rest]
    sys.exit(subprocess.Popen(words, env=os.environ.copy()).wait())
if __name__ == "__main__":
    main()
"""
LAUNCH = """import base64, json, os, subprocess, sys
if __name__ == "__main__":
    world, node = json.loads(base64.urlsafe_b64decode(sys.argv[1])), int(sys.argv[2])
    sizes, env, processes = [len(ids) for ids in world.values()], os.environ.copy(), []
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", WORLD_SIZE=str(sum(sizes)), CROSS_RANK=str(node), CROSS_SIZE=str(len(sizes)),
               LOCAL_SIZE=str(sizes[node]))
    for local in range(sizes[node]):
        env.update(RANK=str(sum(sizes[:node]) + local), LOCAL_RANK=str(local))
        processes.append(subprocess.Popen([sys.executable, "-u", sys.argv[3], f"--local_rank={local}", *sys.argv[4:]], env=env))
        assert processes[-1].pid >= 0
    sys.exit(max(process.wait() for process in processes))
"""


class Launchers(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.show = self.write("show.py", SHOW)
        self.write("deepspeed/__init__.py", "")
        self.write("deepspeed/launcher/__init__.py", "")
        self.write("deepspeed/launcher/runner.py", RUNNER)
        self.write("deepspeed/launcher/launch.py", LAUNCH)
        self.deepspeed = self.write("deepspeed.py.script", f"#!{sys.executable}\nfrom deepspeed.launcher.runner import main\nmain()\n")
        os.chmod(self.deepspeed, 0o755)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(textwrap.dedent(text))
        return path

    def rehearse(self, gpus, rank, *command):
        environment = {**os.environ, "PYTHONPATH": self.folder}
        return subprocess.run([VRAMFIT, "rehearse", "--gpus", gpus, "--ranks", str(rank), "--", *command], capture_output=True, text=True,
                              timeout=100, check=False, env=environment)

    def played(self, gpus, rank, *command):
        """Words, variables and folder of the only process that the launcher started."""
        done = self.rehearse(gpus, rank, *command)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        shown = os.path.join(self.folder, "shown")
        with open(shown, encoding="utf-8") as file:
            found = json.load(file)
        os.remove(shown)
        return found

    def refused(self, why, gpus, *command):
        done = self.rehearse(gpus, 1, *command)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(why, done.stderr)

    def holds(self, variables, expected):
        self.assertEqual({name: variables.get(name) for name in expected}, expected)

    def test_mpirun_becomes_the_rank_with_the_variables_of_its_kind(self):
        flags = ["-np", "4", "--allow-run-as-root", "--map-by", "ppr:2:node", "-x", "A=1", "--mca", "btl", "tcp,self", "-wdir", "/"]
        words, variables, folder = self.played("2x2xH100-80GB", 3, "orterun", *flags, sys.executable, self.show, "--lr", "1")
        self.assertEqual((words, folder), (["--lr", "1"], "/"))
        self.holds(variables, {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                               "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_NODE_RANK": "1", "OMPI_UNIVERSE_SIZE": "4", "A": "1",
                               "OMPI_MCA_btl": "tcp,self", "RANK": "3", "MASTER_ADDR": "127.0.0.1"})
        _, variables, _ = self.played("4xH100-80GB", 2, "mpiexec.hydra", "-n", "4", "-ppn", "4", "-genv", "A", "2", sys.executable, self.show)
        self.holds(variables, {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4", "A": "2"})

    def test_srun_becomes_the_rank_or_the_task_of_its_node(self):
        flags = ["-N2", "--ntasks-per-node=2", "-l", "--gpus-per-node", "2", "--export=ALL,A=1", "-K"]
        words, variables, _ = self.played("2x2xH100-80GB", 3, "srun", *flags, sys.executable, self.show, "-x")
        self.assertEqual(words, ["-x"])
        self.holds(variables, {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "SLURM_NNODES": "2",
                               "SLURM_TASKS_PER_NODE": "2(x2)", "A": "1"})
        _, variables, _ = self.played("2x2xH100-80GB", 3, "srun", "-n", "2", "-N", "2", sys.executable, self.show)
        self.holds(variables, {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NTASKS": "2", "RANK": "3"})

    def test_a_batch_script_has_its_jobs_variables_before_its_srun(self):
        text = f"""\
        #!/bin/bash -e
        #SBATCH --job-name="two nodes"  # a comment
        #SBATCH -N 2 --gpus-per-node=2 --cpus-per-task 8

        #SBATCH --ntasks-per-node=1
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) SEEN="$SLURM_JOB_NAME,$SLURM_NNODES,$SLURM_CPUS_PER_TASK,$SLURM_PROCID"
        #SBATCH --nodes=9
        srun {sys.executable} {self.show} "$1" $SLURM_JOB_NUM_NODES
        """
        script = self.write("job.sbatch", text)
        words, variables, _ = self.played("2x2xH100-80GB", 3, "sbatch", "--parsable", "-J", "own name", script, "a b")
        self.assertEqual(words, ["a b", "2"])
        self.holds(variables, {"SEEN": "own name,2,8,0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NODEID": "1",
                               "SLURM_CPUS_PER_TASK": "8", "RANK": "3", "MASTER_ADDR": "127.0.0.1", "SLURM_SUBMIT_DIR": os.getcwd()})
        words, variables, _ = self.played("2x2xH100-80GB", 3, "sbatch", "-n4", f"--wrap=srun {sys.executable} {self.show} $SLURM_NTASKS")
        self.assertEqual(words, ["4"])
        self.holds(variables, {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"})
        self.refused("sbatch: asks for any ranks, 1 of a node, on 2 nodes", "4xH100-80GB", "sbatch", script)
        self.refused("its first line names no interpreter", "2xH100-80GB", "sbatch", self.write("bare.sh", "srun true\n"))
        self.refused("#SBATCH hetjob: not a flag", "2xH100-80GB", "sbatch", self.write("het.sh", "#!/bin/sh\n#SBATCH hetjob\n"))
        self.refused("none.sh", "2xH100-80GB", "sbatch", "none.sh")

    def test_a_shell_script_finds_the_same_launchers(self):
        script = self.write("train.sh", f"export MASTER_PORT=29500 MASTER_ADDR=node7 RANK=9\\nmpirun -n 2 {sys.executable} {self.show} a b\\n".replace("\\n", "\n"))
        words, variables, _ = self.played("2xH100-80GB", 1, "sh", script)
        self.assertEqual(words, ["a", "b"])
        self.holds(variables, {"RANK": "1", "MASTER_ADDR": "127.0.0.1"})
        self.assertNotEqual(variables["MASTER_PORT"], "29500")
        self.assertIn("1", (variables.get("OMPI_COMM_WORLD_RANK"), variables.get("PMI_RANK")))

    def test_a_program_that_asks_mpi_for_its_rank_is_told_it(self):
        self.write("mpi4py/__init__.py", """\
            import importlib.util, os, sys
            class Finder:  # as mpi4py has one, which picks the module for the MPI that is installed
                @classmethod
                def find_spec(cls, name, path, target=None):
                    own = name == "mpi4py.MPI"
                    return importlib.util.spec_from_file_location(name, os.path.join(path[0], "MPI.own.py")) if own else None
            sys.meta_path.append(Finder)
            """)
        self.write("mpi4py/MPI.own.py", """\
            class Intracomm:
                def __init__(self, comm=None):
                    pass
            SUM, MAX, MIN, PROD, COMM_TYPE_SHARED = "+", "max", "min", "*", 1
            COMM_WORLD = COMM_SELF = Intracomm()
            """)
        self.write("ask.py", """\
            from mpi4py import MPI
            comm = MPI.COMM_WORLD
            node = comm.Split_type(MPI.COMM_TYPE_SHARED)
            print("mpi", comm.Get_rank(), comm.size, node.rank, node.size, comm.allgather("a"), comm.allreduce(3), comm.allreduce(3, op=MPI.MAX),
                  comm.gather(1), comm.bcast("b", root=3), comm.alltoall([5, 6, 7, 8]), comm.Dup().Split(1).Get_rank(), isinstance(comm, MPI.Intracomm))
            try:
                comm.recv(source=0)
            except RuntimeError as error:
                print("refused", error)
            """)
        done = self.rehearse("2x2xH100-80GB", 3, "orterun", "-n", "4", sys.executable, os.path.join(self.folder, "ask.py"))
        self.assertIn("mpi 3 4 1 2 ['a', 'a', 'a', 'a'] 12 3 None b [8, 8, 8, 8] 3 True\n", done.stdout, done.stderr)
        self.assertIn("refused vramfit rehearse: rank 3 of 4 is played alone, so MPI's recv has nobody to talk to", done.stdout)
        self.assertIn("mpi4py: rank 3 of 4 is played alone", done.stderr)

    def test_deepspeed_becomes_the_rank_on_one_node_and_on_several(self):
        words, variables, _ = self.played("2xH100-80GB", 1, self.deepspeed, self.show, "--deepspeed_config", "x.json")
        self.assertEqual(words, ["--local_rank=1", "--deepspeed_config", "x.json"])
        self.holds(variables, {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "CROSS_RANK": "0", "LOCAL_SIZE": "2"})
        self.assertNotEqual(variables["MASTER_PORT"], "29500")
        hosts = self.write("hostfile", "a slots=2\nb slots=2\n")
        _, variables, _ = self.played("2x2xH100-80GB", 3, self.deepspeed, "--hostfile", hosts, self.show)
        self.holds(variables, {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "CROSS_RANK": "1", "CROSS_SIZE": "2"})
        self.refused("the launcher starts 2 x 2 ranks", "4x2xH100-80GB", self.deepspeed, "--hostfile", hosts, self.show)
        self.refused("deepspeed --launcher openmpi leaves", "2x2xH100-80GB", self.deepspeed, "--hostfile", hosts, "--launcher", "openmpi", self.show)

    def test_what_a_launcher_asks_for_must_be_known_and_agree_with_the_gpus(self):
        show = [sys.executable, self.show]
        self.refused("mpirun: asks for 8 ranks, any of a node", "4xH100-80GB", "mpirun", "-np", "8", *show)
        self.refused("srun --multi-prog: a flag that vramfit does not know", "2xH100-80GB", "srun", "--multi-prog", "file")
        self.refused("mpirun: starts several programs (:)", "2xH100-80GB", "mpirun", "-n", "1", *show, ":", "-n", "1", *show)
        self.refused("srun: no program follows its flags", "2xH100-80GB", "srun", "-n", "2")
        self.refused("srun -n: ", "2xH100-80GB", "srun", "-n", "two", *show)


if __name__ == "__main__":
    unittest.main()
