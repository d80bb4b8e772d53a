"""System calls that are denied, by a seccomp filter (Linux, x86-64 and AArch64). Denied calls fail with EPERM."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
ALLOW, ERRNO = 0x7FFF_0000, 0x0005_0000
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16
# Every CLONE_NEW flag: a process in a new user namespace has capabilities again.
NAMESPACE_FLAGS = 0x7E02_0000
# Calls of the x32 interface have other numbers.
X32 = 0x4000_0000

ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
# Numbers on x86-64 and on AArch64.
CLONE, CLONE3 = (56, 220), (435, 435)
# What reaches a network, other processes or more of the kernel. Sockets that exist and socket pairs still work.
DENIED = {
    "socket": (41, 198), "connect": (42, 203), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280), "perf_event_open": (298, 241),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "open_by_handle_at": (304, 265), "kexec_load": (246, 104),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kcmp": (312, 272),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "pidfd_getfd": (438, 438),
}  # fmt: skip
# All that a process needs to compute on files which are open already. newfstatat is what
# C libraries call for fstat. Not sched_getaffinity: FFmpeg then takes the machine for one core and starts no threads.
COMPUTING = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68),
    "readv": (19, 65), "writev": (20, 66), "sched_yield": (24, 124), "mremap": (25, 216), "madvise": (28, 233),
    "nanosleep": (35, 101), "getpid": (39, 172), "exit": (60, 93), "fcntl": (72, 25), "gettimeofday": (96, 169),
    "sigaltstack": (131, 132), "gettid": (186, 178), "futex": (202, 98), "restart_syscall": (219, 128),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "exit_group": (231, 94), "tgkill": (234, 131),
    "newfstatat": (262, 79), "getcpu": (309, 168), "getrandom": (318, 278), "rseq": (334, 293),
}  # fmt: skip


def deny_dangerous() -> bool:
    """For this process and its children: nothing in DENIED, no new namespaces. False where there is no seccomp."""
    column = _column()
    if column is None:
        return False
    rules = [*_return_for(CLONE3[column], ERRNO | errno.ENOSYS)]
    for numbers in DENIED.values():
        rules += _return_for(numbers[column], ERRNO | errno.EPERM)
    rules += [
        (JUMP_EQUAL, 0, 3, CLONE[column]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_BITS, 0, 1, NAMESPACE_FLAGS),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    return _apply(column, rules)


def allow_only_computing() -> bool:
    """For this process: nothing but COMPUTING. It can open no file and start no process any more."""
    column = _column()
    if column is None:
        return False
    rules = []
    for numbers in COMPUTING.values():
        rules += _return_for(numbers[column], ALLOW)
    return _apply(column, [*rules, (RETURN, 0, 0, ERRNO | errno.EPERM)])


def _column() -> int | None:
    known = ARCHITECTURES.get(platform.machine())
    return known[0] if known is not None and sys.platform == "linux" else None


def _return_for(number: int, action: int) -> list[tuple[int, int, int, int]]:
    return [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, action)]


def _apply(column: int, rules: list[tuple[int, int, int, int]]) -> bool:
    architecture = next(code for index, code in ARCHITECTURES.values() if index == column)
    head = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        (LOAD, 0, 0, NUMBER),
        (JUMP_FROM, 0, 1, X32),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    code = b"".join(struct.pack("=HBBI", *rule) for rule in head + rules)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    return ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
