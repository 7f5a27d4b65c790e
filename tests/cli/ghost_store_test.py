"""The ghost store against torch's own TCPStore client: requests, what ghosts answer, and what no client sends."""
import contextlib
import os
import pathlib
import socket
import struct
import subprocess
import sys
import unittest
from datetime import timedelta

from torch.distributed import DistStoreError, PrefixStore, TCPStore
from torch.distributed.elastic.utils import store as elastic

HOST = pathlib.Path(os.environ["VRAMFIT_BIN_DIR"]) / "ghost_store_host"
MAGIC = struct.pack("=BI", 0, 0x3C85F7CE)


class Hosted:
    """A store of `ranks` ranks of which `played` runs; after stop(), `said` is what it reports."""

    def __init__(self, ranks, played):
        self.process = subprocess.Popen([HOST, str(ranks), str(played)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())
        self.ranks, self.said = ranks, ""

    def client(self, timeout=60, **options):
        return TCPStore("127.0.0.1", self.port, self.ranks, False, timedelta(seconds=timeout), **options)

    def stop(self):
        self.said, _ = self.process.communicate(timeout=60)
        return self.process.returncode


@contextlib.contextmanager
def hosted(ranks, played):
    host = Hosted(ranks, played)
    try:
        yield host
        assert host.stop() == 0, host.said
    finally:
        host.process.kill()


class Requests(unittest.TestCase):
    def test_every_request_of_the_client_is_answered_as_torch_does(self):
        for libuv in (True, False):
            with self.subTest(libuv=libuv), hosted(1, 0) as host:
                store = host.client(use_libuv=libuv)
                store.set("key", "value")
                self.assertEqual(store.get("key"), b"value")
                self.assertEqual((store.add("count", 3), store.add("count", -1)), (3, 2))
                self.assertEqual(store.get("count"), b"2")
                self.assertTrue(store.check(["key", "count"]))
                self.assertFalse(store.check(["key", "missing"]))
                self.assertEqual(store.compare_set("key", "value", "new"), b"new")
                self.assertEqual(store.compare_set("key", "value", "newer"), b"new")
                self.assertEqual(store.compare_set("absent", "expected", "new"), b"expected")
                store.append("key", "er")
                store.multi_set(["a", "b"], ["1", "2" * 100_000])
                self.assertEqual(store.multi_get(["a", "b", "key"]), [b"1", b"2" * 100_000, b"newer"])
                self.assertTrue(store.delete_key("a"))
                self.assertFalse(store.delete_key("a"))
                self.assertEqual(sorted(key.removeprefix("/") for key in store.list_keys()), ["b", "count", "key"])
                self.assertEqual(store.num_keys(), 4)  # with the count of workers
                if libuv:
                    store.queue_push("queue", "first")
                    store.queue_push("queue", "second")
                    self.assertEqual(store.queue_len("queue"), 2)
                    self.assertEqual(store.queue_pop("queue"), b"first")

    def test_a_client_that_waits_is_woken_when_another_sets_the_key(self):
        with hosted(1, 0) as host:
            waiting = subprocess.Popen([sys.executable, "-c", (
                "import sys; from torch.distributed import TCPStore\n"
                f"print(TCPStore('127.0.0.1', {host.port}, 1, False).get('late').decode())")], stdout=subprocess.PIPE, text=True)
            store = host.client()
            store.set("late", "here")
            self.assertEqual(waiting.communicate(timeout=200)[0].strip(), "here")


class Ghosts(unittest.TestCase):
    def test_barriers_of_a_world_of_512_are_passed_by_one(self):
        with hosted(512, 5) as host:
            store = PrefixStore("group", host.client())
            elastic.barrier(store, 512, "world", rank=5)
            elastic.barrier(store, 8, "eight of them", rank=1)
        self.assertIn("world/num_members", host.said)

    def test_what_another_rank_would_set_is_what_the_played_one_set_under_its_number(self):
        with hosted(4, 2) as host:
            self.assertEqual(elastic.synchronize(host.client(), b"mine", 2, 4, "data/rank_"), [b"mine"] * 4)
        self.assertIn("data/rank_3", host.said)

    def test_a_name_that_differs_in_two_numbers_is_not_answered(self):
        with hosted(4, 2) as host:
            store = host.client()
            store.set("step_1/rank_2", "mine")
            self.assertEqual(store.get("step_1/rank_3"), b"mine")
            store.set_timeout(timedelta(seconds=1))
            with self.assertRaises(DistStoreError):
                store.get("step_2/rank_3")

    def test_rank_0s_unique_id_is_made_up_and_stays_the_same(self):
        with hosted(4, 2) as host:
            store = PrefixStore("default_pg/0//cuda/", host.client())
            first = store.get("0")
            self.assertEqual((len(first), store.get("0")), (128, first))
            self.assertNotEqual(store.get("1"), first)

    def test_waiting_for_what_nobody_can_know_ends_in_time_and_is_reported(self):
        with hosted(4, 2) as host:
            store = host.client()
            store.set_timeout(timedelta(seconds=1))
            with self.assertRaises(DistStoreError) as caught:
                store.get("the coordinator's address")
            store.set_timeout(timedelta(seconds=60))
            store.set("still", "served")  # nothing is answered to this, so only what follows shows that it arrived
            self.assertEqual(store.get("still"), b"served")
        self.assertIn("never-set /the coordinator's address", host.said)
        self.assertIn("the coordinator's address", str(caught.exception))

    def test_asking_whether_a_key_is_there_makes_nothing_up(self):
        with hosted(4, 2) as host:
            store = PrefixStore("default_pg/0//cuda/", host.client())
            self.assertFalse(store.check(["0"]))


class Hostile(unittest.TestCase):
    def say(self, host, data):
        """What the store answers until it hangs up."""
        with socket.create_connection(("127.0.0.1", host.port), timeout=10) as connection:
            connection.sendall(data)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while chunk := connection.recv(4096):
                    answer += chunk
            return answer

    def test_what_no_client_sends_ends_that_connection_alone(self):
        with hosted(4, 2) as host:
            store = host.client()
            huge = struct.pack("=Q", 1 << 62)
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00\x00", MAGIC + b"\xff", MAGIC + b"\x01" + huge,
                         MAGIC + b"\x01" + struct.pack("=Q", 1) + b"k" + huge, MAGIC + b"\x06" + huge, MAGIC + b"\x0b" + huge):
                with self.subTest(data=data[:12]):
                    self.assertEqual(self.say(host, data), b"")
            store.set("word", "no number")
            with self.assertRaises(Exception):
                store.add("word", 1)
            other = host.client()
            other.set("still", "served")
            self.assertEqual(other.get("still"), b"served")
        self.assertIn("refused", host.said)

    def test_a_message_cut_anywhere_is_no_message(self):
        whole = MAGIC + b"\x01" + struct.pack("=Q", 3) + b"key" + struct.pack("=Q", 5) + b"value"
        with hosted(4, 2) as host:
            for length in range(len(whole)):
                with socket.create_connection(("127.0.0.1", host.port)) as connection:
                    connection.sendall(whole[:length])
            self.assertFalse(host.client().check(["key"]))


if __name__ == "__main__":
    unittest.main()
