"""
The first process of a container that serves one run: loads the libraries, waits for a job, supervises it, ends.

It speaks to the service on standard input and output (frames.py) and ends when its input does, so that a service that
was killed leaves no interpreter running. What keeps the program in is the container; here is only what lies between
this process and its child, which has the same user and the same process namespace: this one cannot be traced, opened
or signalled by it (process 1 is deaf to signals from inside that it ignores).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import threading
import traceback

import execution
import frames
import limits
import namespaces
from supervisor import Host, supervise

SOURCE, SINK = 0, 1
WATCH_MS = 100


def main() -> None:
    """Serves one job."""
    namespaces.hide_from_equals()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    versions = _warm()
    frames.write_json(SINK, b"R", versions)
    try:
        job = frames.read_job(SOURCE)
    except frames.Closed:
        return
    # Processes are counted by the container: a limit of the user would count those of all containers together.
    job["limits"]["processes"] = resource.RLIM_INFINITY
    supervise(job, Host(SOURCE, SINK, namespaces.drop_privileges, limits.address_space()))


def _warm() -> dict[str, str]:
    """Loads the libraries, and ends this process when the service is gone before that is done."""
    done = threading.Event()
    watch = threading.Thread(target=_end_with_service, args=(done,))
    watch.start()
    try:
        return execution.warm()
    finally:
        # No thread may be left when the program's process is forked.
        done.set()
        watch.join()


def _end_with_service(done: threading.Event) -> None:
    poll = select.poll()
    # Only its end: nothing is asked for, and that is always told.
    poll.register(SOURCE, 0)
    while not done.is_set():
        if poll.poll(WATCH_MS):
            os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
