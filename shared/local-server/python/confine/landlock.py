"""Limits the files that a process may read and change, with Landlock (Linux 5.13 and newer)."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# All file system rights of version 1. Later versions add single rights.
ALL = (1 << 13) - 1
REFER, IOCTL_DEVICE = 1 << 13, 1 << 15
TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


def restrict(readable: list[str], writable: list[str]) -> int:
    """
    Limits this process and its children: they read only `readable`, change files only in `writable`, reach no TCP port
    and signal no other process. Needs no_new_privs.

    Returns the version of Landlock; 0 if the kernel has none.
    """
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, VERSION_FLAG)
    if version < 1:
        return 0
    known = ALL | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    known |= IOCTL_DEVICE if version >= 5 else 0
    # The kernel accepts a structure with fewer fields than it knows, and one with more fields if these are zero. One structure therefore
    # works for all versions.
    attributes = struct.pack("=QQQ", known, TCP if version >= 4 else 0, ABSTRACT_SOCKETS_AND_SIGNALS * (version >= 6))
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return 0
    try:
        for path in readable:
            _allow(libc, ruleset, path, EXECUTE | READ_FILE | READ_DIR)
        for path in writable:
            _allow(libc, ruleset, path, known & ~EXECUTE & ~IOCTL_DEVICE)
        return version if libc.syscall(RESTRICT_SELF, ruleset, 0) == 0 else 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        # The system does not have this path, so no rule is added. Access to the path stays denied.
        return
    try:
        if not os.path.isdir(path):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
        libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
