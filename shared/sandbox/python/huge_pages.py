"""Makes forks of this process cheaper: a fork copies one page table entry per huge page, instead of 512."""

from __future__ import annotations

import ctypes
import re

HUGE_PAGE_BYTES = 2 << 20
MADV_COLLAPSE = 25
# A line of /proc/self/maps for private memory without a file: `7f12…-7f34… rw-p 00000000 00:00 0 [heap]`.
OWN_MEMORY = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\b", re.MULTILINE)


def collapse() -> None:
    """Moves the private memory of this process into huge pages. Has no effect on kernels before Linux 6.1."""
    libc = ctypes.CDLL(None)
    with open("/proc/self/maps") as file:
        maps = file.read()
    for start, end in OWN_MEMORY.findall(maps):
        first = -(-int(start, 16) // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        for address in range(first, int(end, 16) - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
            # If the kernel reports an error, then the range keeps its small pages, which is harmless.
            libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE_PAGE_BYTES), MADV_COLLAPSE)
