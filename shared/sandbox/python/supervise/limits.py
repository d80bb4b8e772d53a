"""Limits that a process sets on itself before it meets a program (setrlimit)."""

from __future__ import annotations

import os
import resource

STACK_BYTES_MAX = 8 << 20
# Bounds are in seconds of all threads; the wall clock ends a run of one thread before.
CPU_GRACE_SECONDS = 2
# Used when the system does not say.
ADDRESS_SPACE_BYTES = 1 << 30
# Since this version processes and queued signals are counted in each user namespace apart.
COUNTS_IN_NAMESPACES = (5, 14)
# Signals that a process has queued are memory of the kernel; only real-time ones are kept more than once.
QUEUED_SIGNALS_MAX = 32


def address_space() -> int:
    """Bytes of address space that this process has now; its forks have the same."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return ADDRESS_SPACE_BYTES


def cpu_seconds(timeout_ms: int) -> int:
    """Processor time of a run, of all its threads."""
    return -(-timeout_ms // 1000) + CPU_GRACE_SECONDS


def apply(job: dict, warm_bytes: int) -> None:
    """
    Sets the limits of a job, soft and hard.

    Address space is a true bound on memory, because the code may have only this process, and no memory that is not in
    it: the filters see to that.
    """
    limits = job["limits"]
    values = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_STACK: STACK_BYTES_MAX,
        resource.RLIMIT_CPU: cpu_seconds(job["timeout_ms"]),
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    if _kernel() >= COUNTS_IN_NAMESPACES:
        values[resource.RLIMIT_NPROC] = limits["processes"]
        values[resource.RLIMIT_SIGPENDING] = QUEUED_SIGNALS_MAX
    # Last: setting the others takes memory too.
    values[resource.RLIMIT_AS] = warm_bytes + limits["memory_bytes"]
    for name, value in values.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(name, (value, value))
        except (OSError, ValueError):
            # gVisor knows only some of them; what runs under it has its limits from outside.
            pass


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
