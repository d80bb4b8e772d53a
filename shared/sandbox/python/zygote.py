"""
The zygote: one interpreter that has the libraries loaded, and forks a supervisor for each run.

    zygote.py SOCKET

It never reads a byte of a job: each connection to SOCKET is handed to a fork, which moves into namespaces of its own
and then supervises the one run of that connection (supervise/supervisor.py). It says READY and the versions on standard output,
and ends when its standard input does: it cannot outlive whoever started it. It is process 1 of its namespace, so its
end is the end of every process that came from it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback

import asyncio_wakeup
import execution
import huge_pages
from supervise import frames, limits, namespaces
from supervise.supervisor import Host, supervise

BACKLOG = 128
# A connection that brings no job is given up.
JOB_SECONDS = 10


def main(path: str) -> None:
    """Serves until standard input ends."""
    listening = _listen(path)
    namespaces.become_nobody()
    namespaces.die_with_parent()
    namespaces.hide_from_equals()
    asyncio_wakeup.make_it_work()
    versions = execution.warm()
    huge_pages.collapse()
    warm_bytes = limits.address_space()
    # Supervisors are reaped by the kernel.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(json.dumps({"msg": "ready", "versions": versions}), flush=True)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listening, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if 0 in ready:
            os._exit(0)
        _fork_supervisor(listening, warm_bytes)


def _listen(path: str) -> socket.socket:
    """Whoever started this may be the only one to reach it, and may be root while this is not for long."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    listening.bind(path)
    os.umask(mask)
    listening.listen(BACKLOG)
    return listening


def _fork_supervisor(listening: socket.socket, warm_bytes: int) -> None:
    connection, _ = listening.accept()
    try:
        if os.fork() == 0:
            listening.close()
            _serve(connection.fileno(), warm_bytes)
    except OSError as error:
        # No room for another process: the caller sees its connection close, and may try again.
        print(f"no supervisor: {error}", file=sys.stderr, flush=True)
    finally:
        connection.close()


def _serve(connection: int, warm_bytes: int) -> None:
    try:
        namespaces.die_with_parent()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.alarm(JOB_SECONDS)
        job = frames.JobReader(connection).read()
        signal.alarm(0)
        namespaces.enter(job["limits"]["scratch_bytes"])
        supervise(job, Host(connection, connection, namespaces.drop_privileges, warm_bytes))
    except frames.Closed:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
