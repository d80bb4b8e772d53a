"""Resource limits (setrlimit) that a process sets on itself before it runs a program."""

from __future__ import annotations

import os
import resource

STACK_BYTES_MAX = 8 << 20
# Seconds of CPU time beyond the timeout. A program with several threads uses more CPU time than wall-clock time and is
# ended by this limit. A program with one thread is ended earlier, by the timeout.
CPU_GRACE_SECONDS = 2
# Assumed size of a warm interpreter if /proc cannot be read.
ADDRESS_SPACE_BYTES = 1 << 30
# First kernel version that counts processes and queued signals per user namespace. Older kernels count them per user of the whole machine,
# so the limits of one run would depend on other runs. On such kernels, these two limits are not set.
COUNTS_IN_NAMESPACES = (5, 14)
# Maximum queued signals of a process, because each takes kernel memory. Only real-time signals can be queued several
# times.
QUEUED_SIGNALS_MAX = 32


def address_space() -> int:
    """Current address space of this process, in bytes, which its forks inherit."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return ADDRESS_SPACE_BYTES


def cpu_seconds(timeout_ms: int) -> int:
    """CPU time limit of a run, for all threads together."""
    return -(-timeout_ms // 1000) + CPU_GRACE_SECONDS


def apply(job: dict, warm_bytes: int) -> None:
    """
    Sets the limits of a job, soft and hard.

    The limit of the address space bounds the memory of a run, because the filters prevent other processes and memory
    outside the address space.
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
    # This limit is set last, because setting the other limits takes memory.
    values[resource.RLIMIT_AS] = warm_bytes + limits["memory_bytes"]
    for name, value in values.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(name, (value, value))
        except (OSError, ValueError):
            # gVisor supports only some limits. Under gVisor, the container has limits of its own.
            pass


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
