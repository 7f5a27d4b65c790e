"""Two machines for the tests of launching: two network namespaces with a cable between them, each with its own host name and hosts file.

All of it lives in namespaces of this process, so nothing is left behind, not even after a kill. If they can't be created, the test says why and
exits with 77, which ctest shows as skipped. Root is not needed if user namespaces are allowed."""

import os
import shutil
import socket
import subprocess
import sys

SKIPPED = 77
NAMES, ADDRESSES = ["node01", "node02"], ["10.77.0.1", "10.77.0.2"]
UNSHARE = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def enter():
    """Starts this script again inside namespaces of its own, and returns there."""
    if os.environ.get("VRAMFIT_TEST_NODES") == "made":
        return make()
    for program in ("ip", "unshare", "nsenter", "mount"):
        if shutil.which(program) is None:
            skip(f"there is no `{program}` here (iproute2, util-linux)")
    for user in ([], ["--user", "--map-root-user"]):
        command = [*UNSHARE[:1], *user, *UNSHARE[1:]]
        probe = subprocess.run([*command, "sh", "-c", "ip link add name probe0 type veth peer name probe1"], capture_output=True, text=True)
        if probe.returncode == 0:
            os.environ["VRAMFIT_TEST_NODES"] = "made"
            os.execvp(command[0], [*command, *sys.orig_argv])
    return skip(f"two nodes can't be made here: {probe.stderr.strip().splitlines()[-1] if probe.stderr.strip() else probe.returncode}")


def run(*command):
    subprocess.run(command, check=True)


def make():
    run("mount", "-t", "tmpfs", "none", "/run")
    for i, name in enumerate(NAMES):
        run("ip", "netns", "add", name)
        with open(hosts_file(name), "w", encoding="utf-8") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(ADDRESSES, NAMES)))
        with open(hosts_file(name, "debian"), "w", encoding="utf-8") as f:  # a machine's own name on loopback
            f.write("127.0.0.1 localhost\n" + "".join(f"{'127.0.1.1' if n == name else a} {n}\n" for a, n in zip(ADDRESSES, NAMES)))
        run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "cable0", "netns", NAMES[0], "type", "veth", "peer", "name", "cable1", "netns", NAMES[1])
    for i, name in enumerate(NAMES):
        run("ip", "-n", name, "addr", "add", f"{ADDRESSES[i]}/24", "dev", f"cable{i}")
        run("ip", "-n", name, "link", "set", f"cable{i}", "up")


def hosts_file(name, kind="plain"):
    return f"/run/hosts.{name}.{kind}"


def on_node(node, *command, hosts="plain"):
    """A command line that runs `command` on node 0 or 1, as the same process."""
    name = NAMES[node]
    return ["nsenter", f"--net=/run/netns/{name}", "unshare", "--uts", "--mount", sys.executable, __file__, name, hosts_file(name, hosts), *command]


if __name__ == "__main__":
    socket.sethostname(sys.argv[1])
    run("mount", "--bind", sys.argv[2], "/etc/hosts")
    os.execvp(sys.argv[3], sys.argv[3:])
