"""Ranks without a launcher that watches them, as under srun without --kill-on-bad-exit: a failure of one ends all, and each says why in one line."""

import signal
import time
import unittest

from place import FULL, Place, contents, free_port, in_full, open_mpi, shortest


class RankFailures(Place):
    def launch(self, *, steps=1000000, timeout=600, of_rank=(), ranks=range(3)):
        """Three ranks; `of_rank[r]` are flags that only rank r gets."""
        plan, port = self.plan("3xcpu-1GiB", batch=6), free_port()
        for rank in ranks:
            command = self.train(plan, *dict(of_rank).get(rank, ()), steps=steps, timeout=timeout)
            self.start(command, open_mpi(rank, 3, 3, port=port))

    def all_end(self, culprit, code, reason, says_so=True):
        """Long before ranks would have waited for each other in vain. Returns the seconds that it took."""
        begin = time.monotonic()
        codes, outputs = self.ends(60)
        seconds = time.monotonic() - begin
        self.assertEqual(codes, [code if rank == culprit else 1 for rank in range(3)], "\n".join(outputs))
        self.assert_cause(outputs, culprit, reason, says_so)
        return seconds

    def killed(self, culprit):
        self.end_all()
        self.launch()
        self.wait_for(0, "step 2/")
        self.started[culprit][0].kill()
        return self.all_end(culprit, -signal.SIGKILL, "ended without an error message: it was killed, or its machine failed", says_so=False)

    def test_a_killed_rank_ends_all_within_five_seconds(self):
        for culprit in (2, 0) if FULL else (2,):
            with self.subTest(culprit=culprit):
                self.assertLess(shortest(lambda culprit=culprit: self.killed(culprit)), 5)

    def test_a_rank_that_gets_a_signal(self):
        for culprit, number, name in ((1, signal.SIGTERM, "TERM"), (0, signal.SIGINT, "INT"))[: 2 if FULL else 1]:
            with self.subTest(culprit=culprit):
                self.end_all()
                self.launch()
                self.wait_for(0, "step 2/")
                self.started[culprit][0].send_signal(number)
                self.all_end(culprit, -number, rf"ended by signal {int(number)} \({name}\)")

    def test_a_rank_that_runs_out_of_memory(self):
        self.launch(of_rank={1: ("--budget", "600000")})
        self.all_end(1, 6, "out of memory")

    def test_a_rank_that_fails_before_the_others_are_met(self):
        self.launch(of_rank={2: ("--data", self.path("nowhere.bin"))})
        self.all_end(2, 2, ".*nowhere.bin")

    def test_a_rank_that_stops(self):
        self.launch(timeout=8)
        self.wait_for(0, "step 2/")
        self.started[1][0].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        codes = [self.started[rank][0].wait(60) for rank in (0, 2)]
        self.assertEqual(codes, [1, 1])
        self.assertGreater(time.monotonic() - begin, 3)
        for rank in (0, 2):
            self.assertRegex(contents(self.started[rank][1]), rf"rank {rank} on \S+: stopped because another rank failed: rank 1 on \S+ does not respond")

    @in_full
    def test_a_rank_that_never_comes(self):
        self.launch(timeout=3, ranks=[0, 1])
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1, 1])
        for output in outputs:
            self.assertIn("rank 2 never connected", self.last_line(output))

    @in_full
    def test_a_rank_0_that_never_comes(self):
        self.launch(timeout=3, ranks=[1, 2])
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1, 1])
        for rank, output in zip((1, 2), outputs, strict=True):
            self.assertRegex(self.last_line(output), rf"rank {rank} on \S+: no answer from rank 0 at 127.0.0.1 port \d+ within 3 s \(.*refused\)")

    def test_ranks_of_another_job(self):
        self.launch(of_rank={1: ("--seed", "5")})
        self.all_end(1, 2, "is set up differently from rank 0")

    def one_that_starts_late(self):
        plan, port = self.plan("3xcpu-1GiB", batch=6), free_port()
        for rank, flags in ((0, ()), (1, ("--seed", "5")), (2, ())):
            if rank == 2:
                self.started[1][0].wait(60)
            self.start(self.train(plan, *flags, timeout=600), open_mpi(rank, 3, 3, port=port))
        self.all_end(1, 2, "is set up differently from rank 0")

    def test_a_rank_that_starts_when_two_others_have_already_differed(self):
        # Rank 0 stays for two seconds after it knows: a busy machine may take longer to start another one.
        for attempts_left in (2, 1, 0):
            try:
                return self.one_that_starts_late()
            except AssertionError:
                self.end_all()
                if attempts_left == 0:
                    raise

    @in_full
    def test_a_layout_that_is_not_the_plans(self):
        plan, port = self.plan("2x2xcpu-1GiB"), free_port()
        for rank, local in ((0, 0), (1, 0), (2, 1), (3, 1)):  # srun --distribution=cyclic
            self.start(self.train(plan, timeout=5), {**open_mpi(rank, 4, 2, port=port), "OMPI_COMM_WORLD_LOCAL_RANK": local})
        codes, outputs = self.ends(60)
        self.assertTrue(all(code in (1, 2) for code in codes) and 2 in codes, outputs)
        self.assertIn("--distribution=block", outputs[1])

    def test_variables_that_make_no_sense(self):
        plan = self.plan("3xcpu-1GiB", batch=6)
        for name, value, words in (("OMPI_COMM_WORLD_RANK", "3", "from 0 to 2"), ("OMPI_COMM_WORLD_SIZE", "-1", "OMPI_COMM_WORLD_SIZE=-1"),
                                   ("MASTER_PORT", "65536", "MASTER_PORT=65536"), ("MASTER_ADDR", "a b", "MASTER_ADDR=a b"),
                                   ("OMPI_COMM_WORLD_LOCAL_SIZE", "1", "contradicts"), ("MASTER_PORT", "", "MASTER_PORT is not set")):
            with self.subTest(name=name, value=value):
                self.end_all()
                self.start(self.train(plan), {**open_mpi(1, 3, 3), name: value})
                codes, outputs = self.ends(60)
                self.assertEqual(codes, [2], outputs)
                self.assertIn(words, self.last_line(outputs[0]))
        self.end_all()
        self.start(self.train(plan), {"RANK": 0, "WORLD_SIZE": 3, "LOCAL_RANK": 0, "VRAMFIT_STORE_FILE": "/proc/no/such"})
        codes, outputs = self.ends(60)
        self.assertEqual(codes, [1], outputs)
        self.assertIn("VRAMFIT_STORE_FILE=/proc/no/such", outputs[0])


if __name__ == "__main__":
    unittest.main()
