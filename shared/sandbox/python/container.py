"""
The first process of a container that serves one run: loads the libraries, supervises a job, ends.

It takes a job as soon as it can run one, and loads one library after another until it comes. What the program names
and is not there yet is loaded then, before the program's time begins. With everything loaded it forks the program's
process, which then only waits for the job: to fork this many pages takes longer than to run a short program.

    ready ──▶ loading ──all there──▶ forked ──a job──▶ running ──▶ ended
                 └──────a job, what it names is loaded──▶┘
    the service is gone, at any time: it ends, and its child with it

It speaks to the service on standard input and output (supervise/frames.py) and ends when its input does, so that a service that
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
import traceback

import asyncio_wakeup
import execution
from supervise import frames, limits, namespaces
from supervise.supervisor import Host, fork, supervise, watch

SOURCE, SINK = 0, 1
SITE = "/opt/site"
# A caller who waited for this interpreter sends a job at once, and would wait for a whole library otherwise.
FIRST_LOOK_MS = 30


def main() -> None:
    """Serves one job."""
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
    """As the packages' metadata say (`numpy-2.2.6.dist-info`): to be asked, libraries would have to be imported."""
    names = (name.removesuffix(".dist-info") for name in os.listdir(SITE) if name.endswith(".dist-info"))
    versions = dict(name.split("-", 1) for name in names)
    return {**execution.PYTHON_VERSION, **{name: versions[name] for name in execution.LIBRARIES}}


def _load_until_job(jobs: frames.JobReader) -> list[str]:
    """Loads step by step, and looks for a job before each. Gives what is not loaded."""
    missing = list(execution.STEPS)
    has_come = jobs.has_come(FIRST_LOOK_MS)
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
    # Only whether its reader, the child, is still there.
    poll.register(feed, 0)
    while not jobs.has_come():
        if feed in dict(poll.poll()):
            raise ChildProcessError("the program's process ended before it had a job")
    job = _read(jobs)
    frames.write_job(feed, job)
    watch(child, job, host)


def _read(jobs: frames.JobReader) -> dict:
    job = jobs.read()
    # Processes are counted by the container: a limit of the user would count those of all containers together.
    job["limits"]["processes"] = resource.RLIM_INFINITY
    return job


def _host() -> Host:
    return Host(SOURCE, SINK, namespaces.drop_privileges, limits.address_space())


if __name__ == "__main__":
    try:
        main()
        # Freeing what libraries hold takes a while, and nobody waits for it.
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
