"""Assembles and applies system call filters: classic BPF programs that read struct seccomp_data."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO, KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
DENY = ERRNO | errno.EPERM
# Error of a kernel that lacks the call, after which a C library uses an older call.
UNKNOWN = ERRNO | errno.ENOSYS
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data. Each argument has 8 bytes, with the low half first.
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
# Lowest number of a system call of the x32 ABI.
X32 = 0x4000_0000

ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}

# Numbers of a call by architecture; None if the call does not exist there.
Numbers = tuple[int, "int | None"]
Rule = tuple[int, int, int, int]


class Unsupported(Exception):
    """The kernel or the processor does not support the filters."""


def this_column() -> int:
    """The column of this processor in the tables of calls. @raises Unsupported"""
    known = ARCHITECTURES.get(platform.machine()) if sys.platform == "linux" else None
    if known is None:
        raise Unsupported(f"there is no table of system calls for {sys.platform} on {platform.machine()}")
    return known[0]


def head_rules(column: int, foreign: int = KILL, x32: int = UNKNOWN) -> list[Rule]:
    """The first rules of each filter: reject calls of other architectures, then load the number of the call."""
    architecture = next(code for index, code in ARCHITECTURES.values() if index == column)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, foreign),
        (LOAD, 0, 0, NUMBER),
        (JUMP_FROM, 0, 1, X32),
        (RETURN, 0, 0, x32),
    ]


def return_for(number: int, action: int) -> list[Rule]:
    return [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, action)]


def return_for_all(calls: Iterable[Numbers], column: int, action: int) -> list[Rule]:
    return [rule for numbers in calls if numbers[column] is not None for rule in return_for(numbers[column], action)]


def apply(rules: list[Rule]) -> None:
    """Applies a filter to this process and its future children, irrevocably. @raises Unsupported"""
    code = b"".join(struct.pack("=HBBI", *rule) for rule in rules)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise Unsupported(f"the kernel takes no filter of system calls: {os.strerror(ctypes.get_errno())}")
