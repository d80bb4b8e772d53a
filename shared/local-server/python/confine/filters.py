"""Filters that deny system calls (Linux, x86-64 and AArch64). Denied calls fail with EPERM."""

from __future__ import annotations

from collections.abc import Callable

from seccomp import assembler, calls
from seccomp.assembler import ALLOW, ARGUMENTS, DENY, JUMP_BITS, JUMP_EQUAL, LOAD, RETURN, UNKNOWN, Rule

# All CLONE_NEW flags. They are denied, because a process in a new user namespace has capabilities again.
NAMESPACE_FLAGS = 0x7E02_0000
# System calls that reach a network, other processes or more of the kernel. Open sockets and socket pairs still work.
DENIED = """
    socket connect ptrace process_vm_readv process_vm_writev mount umount2 pivot_root chroot unshare setns bpf
    perf_event_open keyctl add_key request_key userfaultfd io_uring_setup open_by_handle_at kexec_load init_module
    finit_module delete_module kcmp open_tree move_mount fsopen mount_setattr pidfd_getfd""".split()
# System calls for computing on files that are already open. C libraries call newfstatat for fstat. sched_getaffinity is
# missing: FFmpeg then assumes one core and starts no threads.
COMPUTING = """
    read write close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn pread64 pwrite64 readv
    writev sched_yield mremap madvise nanosleep getpid exit fcntl gettimeofday sigaltstack gettid futex restart_syscall
    clock_gettime clock_nanosleep exit_group tgkill newfstatat getcpu getrandom rseq""".split()


def deny_dangerous() -> bool:
    """Denies this process and its children the calls in DENIED and new namespaces. Returns False without seccomp."""
    return _apply(dangerous_rules)


def allow_only_computing() -> bool:
    """Permits this process only the calls in COMPUTING. After this, it can open no file and start no process."""
    return _apply(computing_rules)


def dangerous_rules(column: int) -> list[Rule]:
    """Rules of `deny_dangerous`. `column` selects the processor in the tables of call numbers."""
    return [
        *assembler.return_for(calls.CLONE3[column], UNKNOWN),
        *assembler.return_for_all((calls.DENIED[name] for name in DENIED), column, DENY),
        (JUMP_EQUAL, 0, 3, calls.CLONE[column]),
        (LOAD, 0, 0, ARGUMENTS),
        (JUMP_BITS, 0, 1, NAMESPACE_FLAGS),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]


def computing_rules(column: int) -> list[Rule]:
    allowed = assembler.return_for_all((calls.ALLOWED[name] for name in COMPUTING), column, ALLOW)
    return [*allowed, (RETURN, 0, 0, DENY)]


def _apply(rules: Callable[[int], list[Rule]]) -> bool:
    try:
        column = assembler.this_column()
        assembler.apply(assembler.head_rules(column, foreign=DENY, x32=DENY) + rules(column))
        return True
    except assembler.Unsupported:
        return False
