"""
System calls that a program may make, by two seccomp filters (Linux, x86-64 and AArch64), written without libseccomp.

The first lets through what Python and its libraries use, and answers ENOSYS to the rest, as an older kernel would, so
that a C library falls back. The second refuses with EPERM what leads out, whatever the first one says: another
process, a namespace, the means that the sandbox itself was made with, memory that no limit counts (sockets and pipes,
whose buffers are the kernel's), and what runs of one user share: locks on files, descriptors on their way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO, KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
# The call is not made, and answers 0.
PRETEND = ERRNO
LOAD, JUMP_EQUAL, JUMP_FROM, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets in struct seccomp_data; the arguments have 8 bytes each, the low half comes first.
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
CLONE_THREAD, CLONE_NAMESPACES = 0x0001_0000, 0x7E02_0080
# Calls of the x32 interface have numbers from here.
X32 = 0x4000_0000

ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
# Numbers on x86-64 and on AArch64, which does not have the older ones.
CLONE, CLONE3, FCNTL, TGKILL, PRLIMIT = (56, 220), (435, 435), (72, 25), (234, 131), (302, 261)
# Commands of fcntl that are about a descriptor, and the one that asks for the locks of other processes.
F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 5, 1030
F_SETLK, F_SETLKW = 6, 7
ALLOWED = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None), "fstat": (5, 80),
    "lstat": (6, None), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "ioctl": (16, 29), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "access": (21, None), "select": (23, None), "sched_yield": (24, 124),
    "mremap": (25, 216), "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23),
    "dup2": (33, None), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102), "alarm": (37, None),
    "setitimer": (38, 103), "getpid": (39, 172), "sendfile": (40, 71), "exit": (60, 93), "wait4": (61, 260),
    "uname": (63, 160), "fcntl": (72, 25), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None), "link": (86, None),
    "unlink": (87, None), "symlink": (88, None), "readlink": (89, None), "chmod": (90, None), "fchmod": (91, 52),
    "umask": (95, 166), "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179),
    "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177),
    "getppid": (110, 173), "getpgrp": (111, None), "getgroups": (115, 158), "getresuid": (118, 148),
    "getresgid": (120, 150), "getpgid": (121, 155), "getsid": (124, 156), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "utime": (132, None),
    "statfs": (137, 43), "fstatfs": (138, 44), "getpriority": (140, 141), "setpriority": (141, 140),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126), "mlock": (149, 228), "munlock": (150, 229), "prctl": (157, 167),
    "arch_prctl": (158, None), "gettid": (186, 178), "time": (201, None), "futex": (202, 98),
    "sched_setaffinity": (203, 122), "sched_getaffinity": (204, 123), "epoll_create": (213, None),
    "getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128), "fadvise64": (221, 223),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "exit_group": (231, 94),
    "epoll_wait": (232, None), "epoll_ctl": (233, 21), "tgkill": (234, 131), "utimes": (235, None), "waitid": (247, 95),
    "openat": (257, 56), "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38),
    "linkat": (265, 37), "symlinkat": (266, 36), "readlinkat": (267, 78), "fchmodat": (268, 53), "faccessat": (269, 48),
    "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99), "get_robust_list": (274, 100),
    "utimensat": (280, 88), "epoll_pwait": (281, 22), "timerfd_create": (283, 85), "eventfd": (284, None),
    "fallocate": (285, 47), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87), "eventfd2": (290, 19),
    "epoll_create1": (291, 20), "dup3": (292, 24), "preadv": (295, 69), "pwritev": (296, 70),
    "prlimit64": (302, 261), "getcpu": (309, 168), "renameat2": (316, 276), "getrandom": (318, 278),
    "membarrier": (324, 283), "copy_file_range": (326, 285), "statx": (332, 291), "rseq": (334, 293),
    "close_range": (436, 436), "faccessat2": (439, 439), "epoll_pwait2": (441, 441),
}  # fmt: skip
DENIED = {
    "pipe": (22, None), "shmget": (29, 194), "shmat": (30, 196), "socket": (41, 198), "connect": (42, 203),
    "accept": (43, 202), "sendto": (44, 206), "recvfrom": (45, 207), "sendmsg": (46, 211), "recvmsg": (47, 212),
    "shutdown": (48, 210), "bind": (49, 200), "listen": (50, 201), "getsockname": (51, 204), "getpeername": (52, 205),
    "socketpair": (53, 199), "setsockopt": (54, 208), "getsockopt": (55, 209), "fork": (57, None), "vfork": (58, None), "execve": (59, 221),
    "kill": (62, 129), "semget": (64, 190), "msgget": (68, 186), "flock": (73, 32), "chown": (92, None), "fchown": (93, 55),
    "lchown": (94, None), "ptrace": (101, 117), "syslog": (103, 116), "setuid": (105, 146), "setgid": (106, 144),
    "setreuid": (113, 145), "setregid": (114, 143), "setgroups": (116, 159), "setresuid": (117, 147),
    "setresgid": (119, 149), "setfsuid": (122, 151), "setfsgid": (123, 152), "capset": (126, 91),
    "rt_sigqueueinfo": (129, 138), "mknod": (133, None), "personality": (135, 92), "sched_setscheduler": (144, 119),
    "modify_ldt": (154, None), "pivot_root": (155, 41), "prctl": (157, 167), "adjtimex": (159, 171),
    "setrlimit": (160, 164), "chroot": (161, 51), "acct": (163, 89), "settimeofday": (164, 170), "mount": (165, 40),
    "umount2": (166, 39), "swapon": (167, 224), "reboot": (169, 142), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None), "init_module": (175, 105),
    "delete_module": (176, 106), "quotactl": (179, 60), "tkill": (200, 130), "clock_settime": (227, 112),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "mq_open": (240, 180), "kexec_load": (246, 104),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "inotify_init": (253, None),
    "migrate_pages": (256, 238), "mknodat": (259, 33), "fchownat": (260, 54), "unshare": (272, 97), "tee": (276, 77),
    "vmsplice": (278, 75), "move_pages": (279, 239), "accept4": (288, 242), "pipe2": (293, 59), "inotify_init1": (294, 26),
    "rt_tgsigqueueinfo": (297, 240), "perf_event_open": (298, 241), "fanotify_init": (300, 262),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "clock_adjtime": (305, 266), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "sched_setattr": (314, 274), "seccomp": (317, 277), "memfd_create": (319, 279), "bpf": (321, 280),
    "execveat": (322, 281), "userfaultfd": (323, 282), "pkey_alloc": (330, 289), "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "mount_setattr": (442, 442),
    "landlock_restrict_self": (446, 446), "memfd_secret": (447, 447),
}  # fmt: skip

Rule = tuple[int, int, int, int]


class Unsupported(Exception):
    """This kernel or this processor has no filter for us."""


def allow_known() -> None:
    """For this process: only ALLOWED, and what makes threads. @raises Unsupported"""
    _apply(known_rules(_column()))


def deny_escapes() -> None:
    """For this process: nothing of DENIED, no other processes, no changed limits. @raises Unsupported"""
    _apply(escape_rules(_column()))


def known_rules(column: int) -> list[Rule]:
    """The first filter, for the processor of a column of the tables."""
    rules = _unless_bits(CLONE[column], 0, CLONE_NAMESPACES, errno.EPERM)
    for numbers in ALLOWED.values():
        if numbers[column] is not None:
            rules += _return_for(numbers[column], ALLOW)
    return [*rules, (RETURN, 0, 0, ERRNO | errno.ENOSYS)]


def escape_rules(column: int) -> list[Rule]:
    """The second filter."""
    # The flags of clone3 are in memory, where a filter cannot look; C libraries then use clone.
    rules = _return_for(CLONE3[column], ERRNO | errno.ENOSYS)
    rules += _if_bits(CLONE[column], 0, CLONE_THREAD)
    # Signals to itself are how a program aborts.
    rules += _if_equal(TGKILL[column], 0, os.getpid())
    # With a null pointer it only asks. Both halves of the address count.
    rules += _if_null(PRLIMIT[column], 2)
    rules += _fcntl_rules(FCNTL[column])
    for numbers in DENIED.values():
        if numbers[column] is not None:
            rules += _return_for(numbers[column], ERRNO | errno.EPERM)
    return [*rules, (RETURN, 0, 0, ALLOW)]


def _fcntl_rules(number: int) -> list[Rule]:
    """
    No locks that another run could see on a file that both may read, no signals, no larger pipes.

    Locks that belong to a process (POSIX, as SQLite takes them) are never in the way of that process, and a run is one:
    each would be given, so that is said, and none is taken. F_GETLK looks for those of others and truly finds none.
    """
    about_descriptors = (F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC)
    answers = {**dict.fromkeys(about_descriptors, ALLOW), F_SETLK: PRETEND, F_SETLKW: PRETEND}
    rules = [(LOAD, 0, 0, ARGUMENTS + 8)]
    for command, answer in answers.items():
        rules += _return_for(command, answer)
    rules.append((RETURN, 0, 0, ERRNO | errno.EPERM))
    return [(JUMP_EQUAL, 0, len(rules), number), *rules]


def _column() -> int:
    known = ARCHITECTURES.get(platform.machine())
    if known is None:
        raise Unsupported(f"there is no table of system calls for {platform.machine()}")
    return known[0]


def _return_for(number: int, action: int) -> list[Rule]:
    return [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, action)]


def _if_equal(number: int, argument: int, value: int) -> list[Rule]:
    """Allows a call when its argument is this; the number is loaded again for the rules that follow."""
    return _checked(number, [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_EQUAL, 0, 1, value)])


def _if_bits(number: int, argument: int, bits: int) -> list[Rule]:
    return _checked(number, [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_BITS, 0, 1, bits)])


def _if_null(number: int, argument: int) -> list[Rule]:
    low, high = ARGUMENTS + 8 * argument, ARGUMENTS + 8 * argument + 4
    return _checked(number, [(LOAD, 0, 0, low), (JUMP_EQUAL, 0, 3, 0), (LOAD, 0, 0, high), (JUMP_EQUAL, 0, 1, 0)])


def _unless_bits(number: int, argument: int, bits: int, error: int) -> list[Rule]:
    return [
        (JUMP_EQUAL, 0, 4, number),
        (LOAD, 0, 0, ARGUMENTS + 8 * argument),
        (JUMP_BITS, 0, 1, bits),
        (RETURN, 0, 0, ERRNO | error),
        (RETURN, 0, 0, ALLOW),
    ]


def _checked(number: int, condition: list[Rule]) -> list[Rule]:
    """The last rule of the condition falls through when it holds, and each skips to the refusal when it does not."""
    refusal = [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)]
    return [(JUMP_EQUAL, 0, len(condition) + len(refusal), number), *condition, *refusal]


def _apply(rules: list[Rule]) -> None:
    code = b"".join(struct.pack("=HBBI", *rule) for rule in [*head_rules(_column()), *rules])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        raise Unsupported(f"the kernel takes no filter of system calls: {os.strerror(ctypes.get_errno())}")


def head_rules(column: int) -> list[Rule]:
    """What each filter begins with: no other processor's calls; the number of the call is loaded after it."""
    architecture = next(code for index, code in ARCHITECTURES.values() if index == column)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER),
        (JUMP_FROM, 0, 1, X32),
        (RETURN, 0, 0, ERRNO | errno.ENOSYS),
    ]
