"""
The zygote of the sandbox: one interpreter that has loaded the libraries and forks a supervisor for each run.

    zygote.py SOCKET

The zygote itself never reads a job. Each connection to SOCKET is passed to a fork, which enters its own namespaces and
supervises the run of that connection (supervise/supervisor.py). When the zygote is ready, it prints the versions on
standard output. The zygote ends when its standard input closes, so it cannot outlive the service. As process 1 of its
namespace, the zygote ends all its descendants with itself.
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
# Maximum time in seconds for a connection to send its job. Afterwards the connection is closed.
JOB_SECONDS = 10


def main(path: str) -> None:
    listening = _listen(path)
    namespaces.become_nobody()
    namespaces.die_with_parent()
    namespaces.hide_from_equals()
    asyncio_wakeup.make_it_work()
    versions = execution.warm()
    huge_pages.collapse()
    warm_bytes = limits.address_space()
    # With SIGCHLD ignored, the kernel reaps the supervisors.
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
    """Listens on a socket that only the current user can open. Called before root is dropped."""
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
        # The process limit was reached, so no supervisor was started. The service detects the closed connection and may
        # retry.
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
