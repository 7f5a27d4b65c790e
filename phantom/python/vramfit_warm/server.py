"""Imports modules under the stand-ins and waits: each rehearsal gets a fork of this process, for which they are imported already.
`python server.py SOCKET CHOICES`, started by python/vramfit/_warm.py and cli/rehearse/warm/warm_server.cpp, whose requests come through SOCKET.
CHOICES is a JSON object:
    modules   names to import
    head      a script, whose first imports are made instead; what can't be, is left to the forks
    folder    what comes first on the path of modules, as for the script
    skip      how many words of a rehearsed command are Python and its flags; 1 if it is not there

A request's fork becomes `vramfit rehearse`, with a child of its own that waits for what that program says to run (cli/rehearse/warm/warm_process.h), as if
that program had started it.
"""
import ctypes
import gc
import importlib.util
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types

LARGEST_REQUEST = 1 << 20
PR_SET_PDEATHSIG = 1
COUNT = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch.cuda.is_available then asks NVML, after which PyTorch can still be forked


def receive(requests):
    """(words, folder, the number of the process that is to be the rehearsal's parent or 0, environment), and descriptors: stdout, stderr, where its number
    is told, and perhaps one for its result; or None at the end."""
    text, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
    if not text:
        return None
    fields = text.split(b"\0")[:-1]
    count = int(fields[0])
    return (fields[1:count + 1], fields[count + 1], int(fields[count + 2]), fields[count + 3:]), descriptors


def serve(requests):
    """The start document, in a fork that is to run it; None in this process, when nobody asks any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
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
    """Starts the rehearsal; in the fork that is rehearsed, returns its start document. Where the rehearsal's parent is to be this process, it waits and says
    how that ended; otherwise it ends at once, so that the rehearsal becomes the child of the process that takes orphans, which asked for it."""
    words, folder, parent, environment = request
    out, err, reports, *results = descriptors
    starter = os.getpid()
    rehearsal = os.fork()
    if rehearsal != 0:
        os.write(reports, f"{rehearsal}\n".encode())
        if not parent:
            _, status = os.waitpid(rehearsal, 0)
            os.write(reports, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.close(reports)
    if parent:
        while os.getppid() == starter:
            time.sleep(0.0005)
        end_with(parent, signal.SIGTERM)  # then it ends what it started
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in (out, err):
        os.close(descriptor)
    os.chdir(folder)
    ours, theirs = socket.socketpair()
    program = os.getpid()
    played = os.fork()
    if played == 0:
        for descriptor in results:
            os.close(descriptor)
        ours.close()
        end_with(program, signal.SIGKILL)
        return read_start(theirs)
    for descriptor in (ours.fileno(), *results):
        os.set_inheritable(descriptor, True)
    variables = dict(entry.split(b"=", 1) for entry in environment)
    variables[b"VRAMFIT_WARM"] = f"{played}:{ours.fileno()}".encode()
    for descriptor in results:
        variables[b"VRAMFIT_WARM_RESULT"] = str(descriptor).encode()
    try:
        os.execve(words[0], words, variables)
    except OSError as error:
        print(f"vramfit: {error}", file=sys.stderr)
        os._exit(127)


def end_with(parent, number):
    """This process gets the signal when `parent` ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(127)


def read_start(connection):
    """All that vramfit sends; nothing if it ends before it starts anything."""
    with connection, connection.makefile("rb") as file:
        fields = file.read().split(b"\0")[:-1]
    if not fields:
        os._exit(127)
    count = int(fields[0])
    return {"words": fields[1:count + 1], "output": fields[count + 1], "environment": fields[count + 2:]}


def take_environment(variables):
    """Variables that stay as they are aren't touched: libraries with a C library of their own, such as an audit library, look where they were at the start."""
    for name in [name for name in os.environb if name not in variables]:
        del os.environb[name]
    for name, value in variables.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def load_hooks():
    """What every rehearsed Python has at its start, and this process not."""
    spec = importlib.util.spec_from_file_location("vramfit_hooks", os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "python", "sitecustomize.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(start, skip):
    """Runs what the words name, as `python SCRIPT ARGUMENT...` or `python -m MODULE ARGUMENT...` would."""
    if start["output"] == b"stderr":
        os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    take_environment(dict(entry.split(b"=", 1) for entry in start["environment"]))
    ctypes.CDLL(os.path.join(os.environ["VRAMFIT_PHANTOM_LIB"], "libvramfit-phantom.so")).vramfit_session_follow()
    load_hooks().start()
    script, *arguments = map(os.fsdecode, start["words"][skip:])
    is_module = script == "-m"
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(script))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]
    if is_module:
        sys.argv[:] = ["-m", *arguments[1:]]
        return runpy._run_module_as_main(arguments[0])  # what -m itself calls
    sys.argv[:] = [script, *arguments]
    main.__file__ = os.path.abspath(script)
    main.__cached__ = None
    with open(script, "rb") as file:
        code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
    return exec(code, main.__dict__)


def forks_can_use_gpus(torch):
    """PyTorch refuses it in forks of a process that has started up its GPUs, and also where their number was asked of the CUDA runtime."""
    fork = os.fork()
    if fork == 0:
        os._exit(1 if torch.cuda._is_in_bad_fork() else 0)
    return os.waitpid(fork, 0)[1] == 0


def why_no_fork():
    """What PyTorch or Python can't do in a fork of this process, now; or ""."""
    torch = sys.modules.get("torch")
    if torch is not None and not forks_can_use_gpus(torch):
        return "uses a GPU while it is imported, and PyTorch can't be forked after that"
    if threading.active_count() > 1:
        return "starts a thread while it is imported, which a fork would not have"
    return ""


def restore(own_count):
    if own_count is None:
        del os.environ[COUNT]
    else:
        os.environ[COUNT] = own_count


def import_all(choices):
    """Of a script's head, what can't be imported here is left out; the process begins anew without it."""
    from head import head_of
    from questions import Questions
    del sys.modules["head"], sys.modules["questions"]  # a program may have them
    is_head = "head" in choices
    if is_head and "statements" not in choices:
        choices["statements"] = head_of(choices["head"])
    statements = choices["statements"] if is_head else [f"import {name}" for name in choices["modules"]]
    sys.path[0] = choices.get("folder", sys.path[0])
    questions, hooks = [], load_hooks()
    hooks._after_import("torch", lambda torch: questions.append(Questions(torch)))
    own_count = os.environ.get(COUNT)
    os.environ[COUNT] = "1"
    for number, statement in enumerate(statements):
        try:
            exec(statement, {"__name__": "head"})
            why = why_no_fork()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if not is_head:
                raise
        if why and not is_head:
            sys.exit(f"{choices['modules'][number]} {why}; leave it out")
        if why:
            choices["statements"] = statements[:number]
            restore(own_count)
            words = sys.orig_argv[:-1] + [json.dumps(choices)]
            os.execv(sys.executable, words)
    restore(own_count)
    for each in questions:
        each.end()
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, hooks._AfterImport)]
    if is_head and not statements:
        sys.exit("there is nothing to import before it does something else, or its first import can't be made before a fork")
    return statements


def main():
    requests = socket.socket(fileno=int(sys.argv[1]))
    choices = json.loads(sys.argv[2])
    statements = import_all(choices)
    requests.send(("; ".join(statements) or "nothing").encode())
    gc.collect()
    gc.freeze()  # a fork's collections, that of its end too, leave out what was imported: two seconds less with transformers
    start = serve(requests)
    if start is None:
        os._exit(0)
    play(start, choices.get("skip", 1))


if __name__ == "__main__":
    main()
