"""Imports modules under the stand-ins and waits: each rehearsal gets a fork of this process, for which they are imported already.
`python _warm_server.py SOCKET MODULE...`, started by _warm.py, whose requests come through SOCKET.

A request's fork becomes `vramfit rehearse`, with a child of its own that waits for what that program says to run (cli/rehearse/warm_process.h), as if
that program had started it.
"""
import ctypes
import importlib
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys

LARGEST_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1


def receive(requests):
    """(a request, its descriptors: stdout, stderr, where it reports), or None at the end."""
    text, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
    return (json.loads(text), descriptors) if text else None


def serve(requests):
    """The start document, in a fork that is to run it; None in this process, at its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    requests.send(b"ready")
    while True:
        received = receive(requests)
        if received is None:
            return None
        request, descriptors = received
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return run(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def run(request, descriptors):
    """Waits for the rehearsal and says how it ended; in the fork that is rehearsed, returns its start document."""
    out, err, reports = descriptors
    rehearsal = os.fork()
    if rehearsal != 0:
        os.write(reports, f"{rehearsal}\n".encode())
        _, status = os.waitpid(rehearsal, 0)
        os.write(reports, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(reports)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(request["cwd"])
    ours, theirs = socket.socketpair()
    program = os.getpid()
    played = os.fork()
    if played == 0:
        ours.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != program:
            os._exit(127)
        return read_start(theirs)
    ours.set_inheritable(True)
    environment = {**request["environment"], "VRAMFIT_WARM": f"{played}:{ours.fileno()}"}
    try:
        os.execve(request["words"][0], request["words"], environment)
    except OSError as error:
        print(f"vramfit: {error}", file=sys.stderr)
        os._exit(127)


def read_start(connection):
    """All that vramfit sends; nothing if it ends before it starts anything."""
    with connection, connection.makefile("rb") as file:
        fields = file.read().split(b"\0")[:-1]
    if not fields:
        os._exit(127)
    count = int(fields[0])
    return {"words": fields[1:count + 1], "output": fields[count + 1], "environment": fields[count + 2:]}


def play(start):
    """Runs the script that the words name, as `python SCRIPT ARGUMENT...` would."""
    if start["output"] == b"stderr":
        os.dup2(2, 1)
    os.environ.clear()
    os.environb.update(entry.split(b"=", 1) for entry in start["environment"])
    ctypes.CDLL(os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "libvramfit-phantom.so")).vramfit_session_follow()
    hooks = importlib.util.spec_from_file_location("vramfit_hooks", os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "python", "sitecustomize.py"))
    module = importlib.util.module_from_spec(hooks)
    hooks.loader.exec_module(module)
    module.start()
    script, *arguments = map(os.fsdecode, start["words"][1:])
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


def main():
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            sys.exit(f"{name} uses a GPU while it is imported, and PyTorch can't be forked after that; leave it out")
    start = serve(requests)
    if start is not None:
        play(start)


if __name__ == "__main__":
    main()
