"""Tries forbidden actions in a confined process: `confined.py CODE SCRATCH` prints a line of JSON."""

import json
import os
import socket
import subprocess
import sys

sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "../../sandbox/python")]
from confine import confinement, filters  # noqa: E402


def works(act):
    try:
        act()
        return True
    except OSError:
        return False


def write(path):
    with open(path, "w") as file:
        file.write("x")


report = confinement.confine([sys.base_prefix, sys.argv[1]], sys.argv[2])
can = {
    "read_passwd": works(lambda: open("/etc/passwd").read()),
    "see_processes": works(lambda: os.listdir("/proc")),
    "write_tmp": works(lambda: write("/tmp/sluice-confined")),
    "write_scratch": works(lambda: write(os.path.join(sys.argv[2], "x"))),
    "open_socket": works(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
    "open_unix_socket": works(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)),
    "signal_parent": works(lambda: os.kill(os.getppid(), 0)),
    "child_reads_passwd": subprocess.run(["/bin/cat", "/etc/passwd"], capture_output=True).returncode == 0,
    "be_root": works(lambda: os.setuid(0)) and os.geteuid() == 0,
}
report["uid"] = os.geteuid()
filters.allow_only_computing()
can["open_any_file"] = works(lambda: open(os.path.join(sys.argv[2], "x")))
can["fork"] = works(os.fork)
print(json.dumps({**report, "can": can}))
