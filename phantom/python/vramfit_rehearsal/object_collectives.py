"""torch.distributed's collectives of Python objects, for NCCL groups on phantom GPUs, and for all groups with ghosts.

The originals use kernels to compute how many bytes to expect (sums, maxima and concatenations of sizes), and kernels don't run
here. These versions compute the same on the host. What moves over the group is the same: first sizes, then the objects' bytes, on
the GPU, in pieces that are small enough to really move.

A ghost sends no objects. What a rank that is played sends to another is therefore kept in a folder, and a rank that receives objects
finds there what its sender sent when it was played. If the sender was not played yet, the process ends, and vramfit plays the sender
first (cli/rehearse/ghosts/played_ranks.cpp).
"""

import collections
import functools
import inspect
import os
import pickle
import sys

PIECE_BYTES = 256 << 10  # of all ranks together; the session's real_bytes are no less unless somebody asks for it


def install(torch, ghosts):
    """Replaces the functions. `ghosts`: the other ranks don't run, so what they would send is unknown."""
    distributed = torch.distributed
    if not distributed.is_available():
        return
    replacements = ObjectCollectives(torch, ghosts)
    for name in ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "send_object_list",
                 "recv_object_list"):
        original = getattr(distributed, name, None)
        if original is None:
            continue
        replaced = replace(distributed, original, getattr(replacements, name), ghosts)
        for module in (distributed, distributed.distributed_c10d):
            setattr(module, name, replaced)


def replace(distributed, original, replacement, ghosts):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        group = bound.arguments.get("group")
        is_member = distributed.is_initialized() and distributed.get_rank(group) >= 0
        if not is_member or not (ghosts or distributed.get_backend(group) == "nccl"):
            return original(*args, **kwargs)
        return replacement(**bound.arguments)

    return call


class ObjectCollectives:
    def __init__(self, torch, ghosts):
        self.torch, self.distributed, self.ghosts = torch, torch.distributed, ghosts
        self.sent = Sent(os.environ["VRAMFIT_REHEARSAL_OBJECTS"]) if ghosts and "VRAMFIT_REHEARSAL_OBJECTS" in os.environ else None

    def broadcast_object_list(self, object_list, src=None, group=None, group_src=None, **_):
        root = self.root(src, group, group_src)
        is_root = root == self.distributed.get_rank()
        parts = [pickle.dumps(each) for each in object_list] if is_root else []
        sizes = self.numbers(group, [len(part) for part in parts]) if is_root else self.room(group, len(object_list), self.torch.long)
        self.distributed.broadcast(sizes, root, group=group)
        if self.ghosts and not is_root:
            return  # what the root would send stays unknown: the list keeps what it holds
        sizes = self.read_numbers(sizes)
        data = self.upload(group, b"".join(parts)) if is_root else self.room(group, sum(sizes))
        for first, end in pieces(sum(sizes), 1):
            self.distributed.broadcast(data[first:end], root, group=group)
        if not is_root:
            object_list[:len(sizes)] = self.unpack(self.download(data), sizes)

    def all_gather_object(self, object_list, obj, group=None):
        for rank, each in enumerate(self.gathered(obj, group)):
            object_list[rank] = each

    def gather_object(self, obj, object_gather_list=None, dst=None, group=None, group_dst=None, **_):
        objects = self.gathered(obj, group)
        if self.root(dst, group, group_dst) == self.distributed.get_rank():
            for rank, each in enumerate(objects):
                object_gather_list[rank] = each

    def scatter_object_list(self, scatter_object_output_list, scatter_object_input_list=None, src=None, group=None,
                            group_src=None, **_):
        root = self.root(src, group, group_src)
        objects = [scatter_object_input_list if root == self.distributed.get_rank() else None]
        self.broadcast_object_list(objects, src=root, group=group)
        if objects[0] is not None:
            scatter_object_output_list[0] = objects[0][self.distributed.get_rank(group)]

    def send_object_list(self, object_list, dst=None, group=None, group_dst=None, **_):
        peer = self.root(dst, group, group_dst)
        parts = [pickle.dumps(each) for each in object_list]
        if self.sent:
            self.sent.keep(self.distributed.get_rank(), peer, parts)
        self.distributed.send(self.numbers(group, [len(part) for part in parts]), peer, group=group)
        data = self.upload(group, b"".join(parts))
        for first, end in pieces(len(data), 1):
            self.distributed.send(data[first:end], peer, group=group)

    def recv_object_list(self, object_list, src=None, group=None, group_src=None, **_):
        peer = self.root(src, group, group_src)
        sizes = self.room(group, len(object_list), self.torch.long)
        self.distributed.recv(sizes, peer, group=group)
        parts = self.sent.find(peer, self.distributed.get_rank()) if self.sent else None
        if self.ghosts and parts is None:
            return peer  # what it would send stays unknown: the list keeps what it holds
        sizes = [len(part) for part in parts] if self.ghosts else self.read_numbers(sizes)
        data = self.room(group, sum(sizes))
        for first, end in pieces(sum(sizes), 1):
            self.distributed.recv(data[first:end], peer, group=group)
        objects = b"".join(parts) if self.ghosts else self.download(data)
        object_list[:len(sizes)] = self.unpack(objects, sizes)
        return peer

    def gathered(self, obj, group):
        """The objects of all ranks of the group."""
        ranks = self.distributed.get_world_size(group)
        own = pickle.dumps(obj)
        sizes = self.room(group, ranks, self.torch.long)
        self.distributed.all_gather_into_tensor(sizes, self.numbers(group, [len(own)]), group=group)
        sizes = self.read_numbers(sizes)
        longest = max(sizes)
        sent = self.upload(group, own.ljust(longest, b"\0"))
        received = self.room(group, longest * ranks)
        for first, end in pieces(longest, ranks):
            self.distributed.all_gather([received[rank * longest + first:rank * longest + end] for rank in range(ranks)],
                                        sent[first:end], group=group)
        data = self.download(received)
        return [pickle.loads(data[rank * longest:rank * longest + sizes[rank]]) for rank in range(ranks)]

    def root(self, rank, group, group_rank):
        """The global rank that an argument means; either can be given, 0 if none is."""
        if group_rank is not None:
            return self.distributed.get_global_rank(group or self.distributed.group.WORLD, group_rank)
        return 0 if rank is None else rank

    def device(self, group):
        if self.distributed.get_backend(group) == "nccl":
            return self.torch.device("cuda", self.torch.cuda.current_device())
        return self.torch.device("cpu")

    def room(self, group, count, dtype=None):
        return self.torch.empty(count, dtype=dtype or self.torch.uint8, device=self.device(group))

    def numbers(self, group, values):
        return self.torch.tensor(values, dtype=self.torch.long).to(self.device(group))

    def read_numbers(self, tensor):
        return tensor.cpu().tolist()

    def upload(self, group, data):
        host, card = self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8), self.room(group, len(data))
        for first, end in pieces(len(data), 1):
            card[first:end].copy_(host[first:end])
        return card

    def download(self, tensor):
        return b"".join(tensor[first:end].cpu().numpy().tobytes() for first, end in pieces(len(tensor), 1))

    def unpack(self, data, sizes):
        first, objects = 0, []
        for size in sizes:
            objects.append(pickle.loads(data[first:first + size]))
            first += size
        return objects


class Sent:
    """What ranks that were played sent to others: a file for each call, by sender, receiver and number."""

    def __init__(self, folder):
        self.folder = folder
        self.calls = collections.Counter()

    def path(self, sender, receiver):
        self.calls[sender, receiver] += 1
        return os.path.join(self.folder, f"{sender}-{receiver}-{self.calls[sender, receiver]}")

    def keep(self, sender, receiver, parts):
        write(self.path(sender, receiver), pickle.dumps(parts))

    def find(self, sender, receiver):
        path = self.path(sender, receiver)
        if os.path.exists(path):
            with open(path, "rb") as file:
                return pickle.load(file)
        if os.path.exists(os.path.join(self.folder, f"played.{sender}")):
            raise RuntimeError(f"vramfit rehearse: rank {receiver} receives objects that rank {sender} did not send when it was played alone")
        write(os.path.join(self.folder, "needed"), str(sender).encode())
        print(f"vramfit rehearse: rank {receiver} receives objects from rank {sender}, which is played first", file=sys.stderr, flush=True)
        os._exit(1)


def write(path, data):
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)


def pieces(count, ranks):
    """(first, end) of each piece that moves at once if each of the ranks has `count` bytes."""
    step = max(1, PIECE_BYTES // ranks)
    return [(first, min(count, first + step)) for first in range(0, count, step)]
