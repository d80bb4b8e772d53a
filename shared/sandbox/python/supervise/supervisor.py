"""
Supervises one run: forks the process that executes the program, carries its output to the service, and ends it.

The child has four descriptors: /dev/null as 0, and pipes to the supervisor as 1, 2 and 3. Data from the pipes is not
trusted and is only forwarded, up to the limits. The supervisor determines the end of the run itself, from its clock and
from the exit status in the kernel.

    forked ──verdict──▶ running ──exited, killed──▶ drained ──▶ frame X
       └── the connection closes, at any time: the child is killed and no frame is sent
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import execution
from seccomp import filters
from supervise import frames, limits
from supervise.output import Capped, Control

DRAIN_SECONDS = 0.5
# Interval at which the exit of the child is polled if the kernel has no pidfd (gVisor).
TICK_SECONDS = 0.02
POLL_SECONDS_MAX = 60.0
POLLRDHUP = 0x2000
# Descriptors 0 to 3 are replaced by copies of other descriptors, the sources. Each source is first moved to a number from this one on, so
# that no source is overwritten before it is copied.
DESCRIPTORS_FROM, DESCRIPTORS_MAX = 64, 4096
SETUP_FAILED = 70
NICE = 5
# Signals that Python ignores by default, so that a failed write raises an exception.
IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}


@dataclass(frozen=True)
class Host:
    """The connection to the service, and the function that confines a child before it reads the program."""

    source: int
    sink: int
    confine: Callable[[], None]
    warm_bytes: int


@dataclass(frozen=True)
class Child:
    """The process of a program, which may still wait for its job, and its output pipes."""

    pid: int
    pipes: list[int]


def supervise(job: dict, host: Host) -> None:
    """
    Runs a job and sends its output and, last, its end. No end is sent if the service disconnected or the sandbox failed.

    Must be called in a process of its own, which then ends.
    """
    watch(fork(lambda: job, host), job, host)


def fork(wait_for_job: Callable[[], dict], host: Host) -> Child:
    """Forks the process of a program. The child confines itself, then waits for its job."""
    pipes = [os.pipe() for _ in range(3)]
    pid = os.fork()
    if pid == 0:
        _become_child(wait_for_job, [write for _, write in pipes], host)
    for _, write in pipes:
        os.close(write)
    return Child(pid, [read for read, _ in pipes])


def watch(child: Child, job: dict, host: Host) -> None:
    """Supervises a forked child until its end. The timeout of the job begins now."""
    deadline = time.monotonic() + job["timeout_ms"] / 1000
    end = _Run(child, job, host).watch(deadline)
    if end is not None:
        frames.write_json(host.sink, b"X", end)


def _become_child(wait_for_job: Callable[[], dict], pipes: list[int], host: Host) -> None:
    try:
        for number in signal.valid_signals() - IGNORED - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.setsid()
        os.chdir("/tmp")
        os.nice(NICE)
        host.confine()
        filters.allow_known()
        job = wait_for_job()
        limits.apply(job, host.warm_bytes)
        # The descriptors are replaced last. Until then, errors go to the operator's log instead of the caller's output.
        _take_descriptors(pipes)
    except BaseException:
        traceback.print_exc()
        os._exit(SETUP_FAILED)
    os._exit(
        execution.execute(
            job["code"],
            scan=job["scan"],
            files=job["files"],
            emit=lambda kind, payload: frames.write(3, kind, payload),
            lock_down=filters.deny_escapes,
        )
    )


def _take_descriptors(pipes: list[int]) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, DESCRIPTORS_FROM) for descriptor in (null, *pipes)]
    for target, source in enumerate(sources):
        os.dup2(source, target)
    os.closerange(len(sources), DESCRIPTORS_MAX)


class _Run:

    def __init__(self, child: Child, job: dict, host: Host) -> None:
        self._pid = child.pid
        self._job = job
        self._host = host
        self._status: int | None = None
        self._usage: resource.struct_rusage | None = None
        self._is_wanted = True
        self._control = Control(job["limits"], lambda png: self._send(b"P", png))
        caps = job["limits"]["output_bytes"]
        self._output = [Capped(caps, lambda data, kind=kind: self._send(kind, data)) for kind in (b"O", b"E")]
        self._takers = dict(zip(child.pipes, [*(stream.take for stream in self._output), self._control.take]))
        self._poll = select.poll()
        for pipe in child.pipes:
            self._poll.register(pipe, select.POLLIN)
        self._poll.register(host.source, POLLRDHUP)
        self._exit = self._register_exit()

    def watch(self, deadline: float) -> dict | None:
        """Waits until the child has ended and its pipes are empty. Returns the end; None if no end must be sent."""
        self._serve(lambda: self._status is None, deadline)
        is_late = self._status is None
        self._kill()
        self._serve(lambda: bool(self._takers), time.monotonic() + DRAIN_SECONDS)
        if not self._is_wanted:
            return None
        end = self._end(is_late)
        for stream in self._output:
            stream.finish()
        return end

    def _serve(self, goes_on: Callable[[], bool], deadline: float) -> None:
        while self._is_wanted and goes_on() and (left := deadline - time.monotonic()) > 0:
            longest = POLL_SECONDS_MAX if self._exit is not None or self._status is not None else TICK_SECONDS
            for descriptor, _ in self._poll.poll(max(1, min(left, longest) * 1000)):
                self._handle(descriptor)
            if self._exit is None:
                self._reap(os.WNOHANG)

    def _handle(self, descriptor: int) -> None:
        if descriptor == self._host.source:
            self._is_wanted = False
        elif descriptor == self._exit:
            self._poll.unregister(descriptor)
            self._reap(0)
        else:
            data = os.read(descriptor, frames.READ_BYTES)
            self._takers[descriptor](data)
            if not data:
                self._poll.unregister(descriptor)
                del self._takers[descriptor]

    def _send(self, kind: bytes, payload: bytes) -> None:
        try:
            frames.write(self._host.sink, kind, payload)
        except OSError:
            self._is_wanted = False

    def _register_exit(self) -> int | None:
        try:
            descriptor = os.pidfd_open(self._pid)
        except OSError:
            return None
        self._poll.register(descriptor, select.POLLIN)
        return descriptor

    def _kill(self) -> None:
        """Kills the child and, if it is process 1 of a namespace, all its descendants."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            self._reap(0)

    def _reap(self, flags: int) -> None:
        if self._status is not None:
            return
        pid, status, usage = os.wait4(self._pid, flags)
        if pid == self._pid:
            self._status, self._usage = status, usage

    def _end(self, is_late: bool) -> dict | None:
        if is_late:
            return {"type": "timeout"}
        status = self._status
        if os.WIFSIGNALED(status):
            return self._end_by(os.WTERMSIG(status))
        if self._control.violations is None:
            # The child failed before the program started. Its output is an error of Sluice's own code, so no end is sent.
            return None
        if self._control.violations:
            return {"type": "violations", "violations": self._control.violations}
        return {"type": "exit", "exit_code": os.WEXITSTATUS(status)}

    def _end_by(self, number: int) -> dict:
        if number not in (signal.SIGKILL, signal.SIGXCPU):
            line = f"The program was ended by signal {number} ({signal.strsignal(number)}).\n"
            self._output[1].take(line.encode())
            return {"type": "exit", "exit_code": 128 + number}
        seconds = limits.cpu_seconds(self._job["timeout_ms"])
        # The tolerance of half a second is needed because the kernel counts CPU time in ticks.
        if self._usage.ru_utime + self._usage.ru_stime >= seconds - 0.5:
            return {"type": "killed", "message": f"The limit of {seconds} s of processor time was exceeded."}
        mebibytes = self._job["limits"]["memory_bytes"] >> 20
        return {"type": "killed", "message": f"The memory limit of {mebibytes} MiB was exceeded."}
