"""
The first process of a container that serves one run: loads the libraries, supervises one job, ends.

The process accepts a job at any time and loads one library after another while it waits. If a job arrives early, then
only the libraries that its code names are still loaded, before the timeout of the program begins. After all libraries
are loaded, the process forks the child for the program, which then waits for the job. Forking in advance saves time,
because a fork of this many pages takes longer than a short program.

    ready ──▶ loading ──all loaded──▶ forked ──job──▶ running ──▶ ended
                 └──────job: load the libraries that it names──▶┘
    the service disconnects, at any time: the process ends, and its child with it

The process exchanges frames with the service on standard input and output (supervise/frames.py) and ends when its
input closes. A service that was killed therefore leaves no interpreter running. The container confines the program.
This file only protects the process from its child, which has the same user and process namespace. The child cannot
trace it, open its files or signal it, because the kernel drops signals to process 1 that process 1 ignores.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import traceback

import asyncio_wakeup
import execution
from supervise import frames, limits, namespaces
from supervise.supervisor import Host, fork, supervise, watch

SOURCE, SINK = 0, 1
SITE = "/opt/site"
# Time in ms to wait for a job before the first library is loaded. If a caller already waits, then its job arrives within this time and is not delayed
# by libraries that it does not need.
FIRST_JOB_WAIT_MS = 30


def main() -> None:
    namespaces.hide_from_equals()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    asyncio_wakeup.make_it_work()
    execution.prepare()
    frames.write_json(SINK, b"R", _versions())
    jobs = frames.JobReader(SOURCE)
    try:
        missing = _load_until_job(jobs)
        if missing:
            _run_early(jobs, missing)
        else:
            _run_prepared(jobs)
    except frames.Closed:
        pass


def _versions() -> dict[str, str]:
    """Reads the versions from the names of metadata folders (`numpy-2.2.6.dist-info`), without importing the libraries."""
    names = (name.removesuffix(".dist-info") for name in os.listdir(SITE) if name.endswith(".dist-info"))
    versions = dict(name.split("-", 1) for name in names)
    return {**execution.PYTHON_VERSION, **{name: versions[name] for name in execution.LIBRARIES}}


def _load_until_job(jobs: frames.JobReader) -> list[str]:
    """Loads one library after another until a job arrives. Returns the libraries that are not loaded yet."""
    missing = list(execution.STEPS)
    has_come = jobs.has_come(FIRST_JOB_WAIT_MS)
    while missing and not has_come:
        execution.load(missing.pop(0))
        has_come = jobs.has_come()
    return missing


def _run_early(jobs: frames.JobReader, missing: list[str]) -> None:
    job = _read(jobs)
    for name in missing:
        if name.partition(".")[0] in job["code"]:
            execution.load(name)
    supervise(job, _host())


def _run_prepared(jobs: frames.JobReader) -> None:
    host = _host()
    source, feed = os.pipe()
    child = fork(frames.JobReader(source).read, host)
    os.close(source)
    poll = select.poll()
    poll.register(SOURCE, select.POLLIN)
    # Without requested events, poll() reports only that the reading end was closed, which means that the child has
    # ended.
    poll.register(feed, 0)
    while not jobs.has_come():
        if feed in dict(poll.poll()):
            raise ChildProcessError("the program's process ended before it had a job")
    job = _read(jobs)
    frames.write_job(feed, job)
    watch(child, job, host)


def _read(jobs: frames.JobReader) -> dict:
    job = jobs.read()
    # The number of processes is unlimited here, because the container limits it. A limit per user would count the processes of all containers.
    job["limits"]["processes"] = resource.RLIM_INFINITY
    return job


def _host() -> Host:
    return Host(SOURCE, SINK, namespaces.drop_privileges, limits.address_space())


if __name__ == "__main__":
    try:
        main()
        # Exits without cleanup, because the libraries would take a long time to free their memory.
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
