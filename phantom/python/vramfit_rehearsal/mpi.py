"""mpi4py in a rank that is played alone: MPI.COMM_WORLD has the ranks that the launcher would have started, and each of the others is
taken to have given what this one gives. MPI itself, below it, has one rank. What would need the others' data is refused by its name."""

import os
import sys

notes = []  # for the report, once torch's statistics are written

RANKS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"))
LOCAL = (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
# Forms with buffers, and messages from one rank to another.
REFUSED = ("send", "recv", "isend", "irecv", "sendrecv", "ssend", "bsend", "Send", "Recv", "Isend", "Irecv", "Sendrecv", "Probe", "probe", "Bcast", "Ibcast",
           "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv", "Reduce", "Allreduce", "Iallreduce",
           "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan", "scan", "exscan", "Create", "Create_group")


def place(names):
    for rank, size in names:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def install(mpi):
    """`mpi` is the module mpi4py.MPI."""
    mpi.COMM_WORLD = played(mpi, *place(RANKS))
    text = (f"mpi4py: rank {mpi.COMM_WORLD.Get_rank()} of {mpi.COMM_WORLD.Get_size()} is played alone; the other ranks are taken to give what it gives, "
            "and MPI's messages and its forms with buffers are refused")
    notes.append(text)
    print(f"vramfit rehearse: {text}", file=sys.stderr)


def played(mpi, own, count):
    """A communicator in which this process is rank `own` of `count`."""

    class Played(mpi.Intracomm):
        def Get_rank(self):
            return own

        def Get_size(self):
            return count

        rank, size = property(Get_rank), property(Get_size)

        def Barrier(self):
            pass

        barrier = Barrier

        def bcast(self, obj, root=0):
            return obj  # another rank's is not known: what is there stays

        def allgather(self, sendobj):
            return [sendobj] * count

        def gather(self, sendobj, root=0):
            return [sendobj] * count if own == root else None

        def scatter(self, sendobj, root=0):
            if own != root:
                refuse("scatter from another rank")
            return sendobj[own]

        def alltoall(self, sendobj):
            return [sendobj[own]] * count

        def allreduce(self, sendobj, op=mpi.SUM):
            if op not in (mpi.SUM, mpi.MAX, mpi.MIN):
                refuse("allreduce, but for sums, largest and smallest numbers,")
            return sendobj * count if op == mpi.SUM else sendobj

        def reduce(self, sendobj, op=mpi.SUM, root=0):
            whole = self.allreduce(sendobj, op)
            return whole if own == root else None

        def Dup(self, info=None):
            return played(mpi, own, count)

        Clone = dup = Dup

        def Split(self, color=0, key=0):
            return played(mpi, own, count)  # the others pass the same color

        def Split_type(self, split_type, key=0, info=None):
            return played(mpi, *place(LOCAL))

        def Free(self):
            pass

    def refuse(name):
        raise RuntimeError(f"vramfit rehearse: rank {own} of {count} is played alone, so MPI's {name} has nobody to talk to; use --ranks all")

    def refusing(name):
        return lambda self, *args, **kwargs: refuse(name)

    for name in REFUSED:
        setattr(Played, name, refusing(name))
    return Played(mpi.COMM_SELF)
