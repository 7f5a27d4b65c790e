"""Jobs on two machines (nodes.py), started by torchrun and as Slurm and MPI would: same losses as on one machine, and failures between two."""

import os
import shlex
import signal
import subprocess
import sys
import time
import unittest

import nodes
from place import BIN, FULL, Place, in_full, open_mpi, process_of_rank

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
PORT = 29500


def slurm(rank):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": 4, "SLURM_STEP_NUM_TASKS": 4, "SLURM_LOCALID": rank % 2, "SLURM_NODEID": rank // 2,
            "SLURM_STEP_NUM_NODES": 2, "SLURM_STEP_NODELIST": "node[01-02]", "SLURM_JOB_ID": 77, "SLURM_STEP_ID": 0}


def mpi(rank):
    return open_mpi(rank, 4, 2, nodes.ADDRESSES[0], PORT)


def hydra(rank):
    """As MPICH; the interface is given too."""
    return {"PMI_RANK": rank, "PMI_SIZE": 4, "MPI_LOCALRANKID": rank % 2, "MPI_LOCALNRANKS": 2, "MASTER_ADDR": "node01", "MASTER_PORT": PORT,
            "GLOO_SOCKET_IFNAME": f"cable{rank // 2}"}


def listening(node):
    """Addresses on which something listens on a node, as (IPv4 address, port), or ("ipv6", port) for any other than ::1."""
    tables = subprocess.run(nodes.on_node(node, "cat", "/proc/self/net/tcp", "/proc/self/net/tcp6"), capture_output=True, text=True, check=True).stdout
    found = []
    for line in tables.splitlines():
        fields = line.split()
        if fields[0].endswith(":") and fields[3] == "0A":
            address, port = fields[1].split(":")
            host = ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if len(address) == 8 else "ipv6"
            found.append((host, int(port, 16)))
    return found


class TwoNodes(Place):
    def start_ranks(self, command, variables, hosts="plain"):
        for rank in range(4):
            self.start(nodes.on_node(rank // 2, *command, hosts=hosts), variables(rank))

    def start_torchrun(self, command, *flags):
        for node in (0, 1):
            self.start(nodes.on_node(node, *TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(node), *flags, *command))

    def on_one_node(self, *job):
        """Losses of the job on one machine with as many ranks."""
        done = subprocess.run([os.path.join(BIN, "vramfit"), "run", self.plan("4xcpu-1GiB", *job), *self.flags(), "-o", self.path("run.json")],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = self.losses()
        os.remove(self.path("run.json"))
        return losses

    def test_hybrid_shards_started_by_slurm_and_mpi_give_the_losses_of_one_node(self):
        expected = self.on_one_node("--sharding", "hybrid-shard", "--mesh", "replicate=2,shard=2")
        plan = self.plan("2x2xcpu-1GiB", "--sharding", "hybrid-shard")
        for variables, hosts in ((slurm, "plain"), (mpi, "debian"), (hydra, "plain"))[: 3 if FULL else 2]:
            with self.subTest(launcher=variables.__name__):
                self.end_all()
                self.start_ranks(self.train(plan, "-o", self.path("run.json")), variables, hosts)
                self.all_well()
                self.assertEqual(self.losses(), expected)
                os.remove(self.path("run.json"))

    @in_full
    def test_the_torchrun_line_that_run_prints_gives_the_losses_of_one_node(self):
        expected = self.on_one_node()
        done = subprocess.run([os.path.join(BIN, "vramfit"), "run", self.plan("2x2xcpu-1GiB"), *self.flags(), "-o", self.path("run.json")],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        line = next(shlex.split(line) for line in done.stderr.splitlines() if line.strip().startswith("torchrun --no-python"))
        for node in (0, 1):
            names = {"torchrun": sys.executable, "N": str(node), "FIRST": nodes.ADDRESSES[0]}
            command = [names.get(word, word) for word in line]
            self.start(nodes.on_node(node, command[0], "-m", "torch.distributed.run", *command[1:]))
        self.all_well()
        self.assertEqual(self.losses(), expected)

    def test_a_killed_rank_on_the_second_node_ends_all_under_torchrun(self):
        self.start_torchrun(self.train(self.plan("2x2xcpu-1GiB"), steps=1000000), "--rdzv-backend", "c10d", "--rdzv-endpoint",
                            f"{nodes.ADDRESSES[0]}:{PORT}", "--rdzv-id", "x")
        self.wait_for(0, "step 2/", 90)
        ranks = [process_of_rank(self.directory.name, rank) for rank in range(4)]
        self.assertNotIn(None, ranks)
        os.kill(ranks[3], signal.SIGKILL)
        begin = time.monotonic()
        while any(process_of_rank(self.directory.name, rank) for rank in range(4)):
            time.sleep(0.05)
            self.assertLess(time.monotonic() - begin, 60)
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1, 1])
        cause = "rank 3 on node02 ended without an error message"
        self.assertIn("stopped because another rank failed: " + cause, outputs[0])
        self.assertIn(cause, outputs[0][outputs[0].rindex("Root Cause"):], "torchrun's summary on the other node")
        self.assertIn("SIGKILL", outputs[1])

    @in_full
    def test_out_of_memory_on_the_second_node_ends_all(self):
        command = self.train(self.plan("2x2xcpu-1GiB"), steps=1000000)
        for rank in range(4):
            self.start(nodes.on_node(rank // 2, *command, *(["--budget", "600000"] if rank == 2 else [])), slurm(rank))
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1, 1, 6, 1], outputs)
        self.assert_cause(outputs, 2, "out of memory")

    @in_full
    def test_a_node_that_is_cut_off_ends_the_others_with_its_name(self):
        self.start_ranks(self.train(self.plan("2x2xcpu-1GiB"), steps=1000000, timeout=6), slurm)
        self.wait_for(0, "step 2/")
        subprocess.run(["ip", "-n", nodes.NAMES[1], "link", "set", "cable1", "down"], check=True)
        try:
            codes, outputs = self.ends(60)
        finally:
            subprocess.run(["ip", "-n", nodes.NAMES[1], "link", "set", "cable1", "up"], check=True)
        self.assertEqual(codes, [1] * 4, outputs)
        for rank in (0, 1):
            self.assertRegex(self.last_line(outputs[rank]), "rank [23] on node02 does not respond")
        for rank in (2, 3):
            self.assertIn("rank 0 on node01 does not respond", self.last_line(outputs[rank]))

    def test_a_job_on_one_node_can_not_be_reached_from_the_other(self):
        one = {"SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2, "SLURM_STEP_NUM_NODES": 1, "SLURM_STEP_NODELIST": "node01"}
        plan = self.plan("2xcpu-1GiB")
        launches = {"vramfit run": [([os.path.join(BIN, "vramfit"), "run", plan, *self.flags(steps=1000000)], {})],
                    "Slurm": [(self.train(plan, steps=1000000), {**slurm(rank), **one}) for rank in (0, 1)]}
        for name, commands in launches.items():
            with self.subTest(launcher=name):
                self.end_all()
                for command, variables in commands:
                    self.start(nodes.on_node(0, *command), variables)
                self.wait_for(0, "step 2/")
                found = listening(0)
                self.assertGreaterEqual(len(found), 3, "the store, the watch, Gloo")
                self.assertEqual({host for host, _ in found}, {"127.0.0.1"})
                knock = "import socket, sys\nfor port in sys.argv[1:]:\n  print(socket.socket().connect_ex(('10.77.0.1', int(port))))"
                answers = subprocess.run(nodes.on_node(1, sys.executable, "-c", knock, *(str(port) for _, port in found)), capture_output=True, text=True,
                                         timeout=30, check=True).stdout.split()
                self.assertEqual(set(answers), {"111"}, "connection refused")

    def test_a_job_on_two_nodes_listens_on_one_address_of_each(self):
        self.start_ranks(self.train(self.plan("2x2xcpu-1GiB"), steps=1000000), slurm)
        self.wait_for(0, "step 2/")
        for node in (0, 1):
            self.assertEqual({host for host, _ in listening(node)}, {nodes.ADDRESSES[node]})

    def test_a_master_that_can_not_be_reached_is_an_error_within_the_timeout(self):
        plan = self.plan("2x2xcpu-1GiB")
        for address in (nodes.ADDRESSES[0], "10.77.0.99", "192.0.2.1", "host.invalid"):
            self.start(nodes.on_node(1, *self.train(plan, timeout=3)), {**mpi(3), "MASTER_ADDR": address})
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1] * 4, outputs)
        for output, words in zip(outputs, ("refused", "No route to host|timed out", "unreachable", "host.invalid"), strict=True):
            self.assertRegex(self.last_line(output), f"rank 3 on node02: no answer from rank 0 at .* port {PORT} within 3 s .*({words}).*MASTER_ADDR")

    def test_rank_0_refuses_a_master_that_is_loopback_to_itself_alone(self):
        self.start(nodes.on_node(0, *self.train(self.plan("2x2xcpu-1GiB"), timeout=3), hosts="debian"), slurm(0))
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [2], outputs)
        self.assertIn("MASTER_ADDR node01 is this machine's loopback here", self.last_line(outputs[0]))


if __name__ == "__main__":
    nodes.enter()
    unittest.main()
