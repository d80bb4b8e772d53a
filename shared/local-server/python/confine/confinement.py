"""
Removes network, other files and privileges from this process before it reads any input.

If the system lacks some of these means, then the server runs anyway and logs the result of `confine`. Three independent
layers block the network: a network namespace, the seccomp filter, and Landlock for TCP.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys

from confine import filters, landlock

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 1, 8, 38, 47, 2
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x0800_0000, 0x1000_0000, 0x4000_0000
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x2008_0522, 2
NOBODY = 65_534
# Result of an attempt to become the user nobody. CAN_READ: all files are readable. CANNOT_READ: some files are not
# readable. CANNOT_BE: the change is refused, as in a container without setuid.
CAN_READ, CANNOT_READ, CANNOT_BE = range(3)
FILES_MAX = 512
# Paths of libraries, time zones and facts about the processor. Other parts of /proc would show other processes.
SYSTEM = [
    "/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/proc/cpuinfo",
    "/proc/meminfo", "/sys/devices/system/cpu", "/sys/devices/system/node", "/dev/urandom", "/dev/random",
]  # fmt: skip


def lower_limit(name: int, value: int) -> None:
    """Sets the soft and hard value of a resource limit, but never above the present hard value."""
    _, hard = resource.getrlimit(name)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(name, (value, value))
    except (OSError, ValueError):
        # macOS refuses some limits. This is not fatal, because other code also limits the time and the size of the
        # output.
        pass


def limit_memory(bytes_max: int) -> None:
    """Limits private memory. Address space that is only reserved, as by threads, does not count (Linux 4.7)."""
    lower_limit(resource.RLIMIT_DATA, bytes_max)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(readable: list[str], scratch: str) -> dict:
    """
    Limits this process and all its children to the paths `readable` and the directory `scratch`, without network.

    Call this before any thread is started. In the result, `network` and `files` name the restrictions, or are "open".
    `user` is the user of the process. `is_complete` is False if a restriction is missing.
    """
    for name, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, FILES_MAX)):
        lower_limit(name, value)
    if sys.platform != "linux":
        return {"network": "open", "files": "open", "user": str(os.getuid()), "is_complete": False}
    libc = ctypes.CDLL(None, use_errno=True)
    readable = [*readable, *SYSTEM]
    has_namespace = _leave_network(libc)
    nobody = _try_nobody(readable, scratch) if os.geteuid() == 0 else CANNOT_BE
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = landlock.restrict(readable, [scratch, "/dev/null"])
    _drop_privileges(libc, nobody, bool(version), scratch)
    has_filter = filters.deny_dangerous()
    network = [name for name, has in (("namespace", has_namespace), ("seccomp", has_filter)) if has]
    return {
        "network": "+".join(network) or "open",
        "files": f"landlock {version}" if version else "open",
        "user": "nobody" if os.getuid() == NOBODY else str(os.getuid()),
        "is_complete": bool(network and version and os.getuid() != 0),
    }


def _leave_network(libc: ctypes.CDLL) -> bool:
    """Enters a network namespace without interfaces. Without root, this needs a user namespace with one user."""
    if os.geteuid() == 0:
        # As root, a user namespace is not used. A new user namespace contains only one user, so root could not become
        # nobody later.
        return libc.unshare(CLONE_NEWNET | CLONE_NEWIPC) == 0
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _try_nobody(paths: list[str], scratch: str) -> int:
    """Tests in a child process whether the user nobody can read the paths, because a parent directory may be closed to other users."""
    os.chmod(os.path.dirname(scratch), 0o711)
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            seen = all(os.access(path, os.R_OK) for path in paths if path not in SYSTEM)
            os._exit(CAN_READ if seen and os.access(os.path.dirname(scratch), os.X_OK) else CANNOT_READ)
        except OSError:
            os._exit(CANNOT_BE)
        finally:
            os._exit(CANNOT_BE)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _drop_privileges(libc: ctypes.CDLL, nobody: int, has_landlock: bool, scratch: str) -> None:
    """
    Changes from root to nobody and drops all capabilities. Another user only drops those of its user namespace.

    If nobody cannot read the model files (in a home directory closed to others), then one capability is kept, which
    ignores directory permissions. Landlock then limits the readable paths. Without Landlock, the process stays root
    but has no capability.
    """
    if nobody == CANNOT_BE or (nobody == CANNOT_READ and not has_landlock):
        _set_capabilities(libc, 0)
        return
    os.chown(scratch, NOBODY, NOBODY)
    libc.prctl(PR_SET_KEEPCAPS, 1 if nobody == CANNOT_READ else 0, 0, 0, 0)
    _become_nobody()
    if nobody == CANNOT_READ:
        _set_capabilities(libc, 1 << CAP_DAC_READ_SEARCH)
        libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0)
    else:
        _set_capabilities(libc, 0)


def _set_capabilities(libc: ctypes.CDLL, mask: int) -> None:
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    # Effective, permitted and inheritable capabilities: first the lower 32 bits, then the upper 32.
    libc.capset(header, struct.pack("=IIIIII", mask, mask, mask, 0, 0, 0))
