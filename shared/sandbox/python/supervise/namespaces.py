"""
Namespaces that isolate a run from the machine, created without privileges through the C library.

A supervisor calls `enter` and then forks; its child calls `drop_privileges`. Before that call, the process has all
capabilities inside the new namespaces, but none outside.
"""

from __future__ import annotations

import ctypes
import os
import signal

NOBODY = 65_534
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x4000, 0x4_0000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITIES_MAX, CAPABILITY_VERSION = 64, 0x2008_0522
SCRATCH_FILES_MAX = 8_192
# Directories that a run must not see: the socket of the zygote, and files that describe the machine.
HIDDEN = ("/run", "/proc")

_libc = ctypes.CDLL(None, use_errno=True)


def enter(scratch_bytes: int) -> None:
    """
    Moves this process into new namespaces with an empty /tmp. The next forked process is process 1 of its namespace.

    @raises OSError with the failed step
    """
    _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # Otherwise the files uid_map and gid_map below belong to root.
    spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
    _check(_libc.unshare(spaces), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{NOBODY} {NOBODY} 1"), ("gid_map", f"{NOBODY} {NOBODY} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    # If memory is short, then the kernel kills this run first.
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    plain = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    options = f"size={scratch_bytes},nr_inodes={SCRATCH_FILES_MAX},mode=1777".encode()
    _check(_libc.mount(b"tmpfs", b"/tmp", b"tmpfs", plain, options), "/tmp")
    for path in HIDDEN:
        _check(_libc.mount(b"tmpfs", path.encode(), b"tmpfs", plain | MS_RDONLY, b"size=4k,mode=555"), path)


def become_nobody() -> None:
    """If this process runs as root, changes irrevocably to the user nobody."""
    if os.getuid() != 0:
        return
    _drop_bounding_set()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def drop_privileges() -> None:
    """Drops all capabilities of this process, irrevocably. @raises OSError"""
    _drop_bounding_set()
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    die_with_parent()


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_from_equals() -> None:
    """Prevents other processes of the user from tracing this process and its forks, and from opening their files."""
    _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _drop_bounding_set() -> None:
    for capability in range(CAPABILITIES_MAX):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # The kernel has no capability with this number.


def _check(result: int, step: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{step}: {os.strerror(code)}")
