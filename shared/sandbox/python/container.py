"""
The first process of a container that serves one run: loads the libraries, waits for a job, supervises it, ends.

It speaks to the service on standard input and output (frames.py) and ends when its input does, so that a service that
was killed leaves no interpreter running. What keeps the program in is the container; here is only what lies between
this process and its child, which has the same user and the same process namespace: this one cannot be traced, opened
or signalled by it (process 1 is deaf to signals from inside that it ignores).
"""

from __future__ import annotations

import resource
import signal
import sys
import traceback

import execution
import frames
import limits
import namespaces
from supervisor import Host, supervise

SOURCE, SINK = 0, 1


def main() -> None:
    """Serves one job."""
    namespaces.hide_from_equals()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    versions = execution.warm()
    frames.write_json(SINK, b"R", versions)
    try:
        job = frames.read_job(SOURCE)
    except frames.Closed:
        return
    # Processes are counted by the container: a limit of the user would count those of all containers together.
    job["limits"]["processes"] = resource.RLIM_INFINITY
    supervise(job, Host(SOURCE, SINK, namespaces.drop_privileges, limits.address_space()))


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
