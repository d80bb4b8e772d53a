"""
Two filters for the system calls of a program.

1. The first filter allows the calls that Python and its libraries use. All others fail with ENOSYS, as in an older
   kernel, so that C libraries use a replacement.
2. The second filter denies calls with EPERM, even if the first one allows them. Denied are calls for other processes
   and namespaces, and calls by which the sandbox itself was set up. Sockets and pipes are denied, because their
   buffers are kernel memory without a limit. File locks are denied, because runs of one user share them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from seccomp.assembler import (
    ALLOW, ARGUMENTS, DENY, ERRNO, JUMP_BITS, JUMP_EQUAL, LOAD, RETURN, UNKNOWN, Rule, apply, head_rules, return_for,
    return_for_all, this_column,
)  # fmt: skip
from seccomp.calls import ALLOWED, CLONE, CLONE3, DENIED

# Filter result that skips the system call and returns 0, as if the call had succeeded.
PRETEND = ERRNO
CLONE_THREAD, CLONE_NAMESPACES = 0x0001_0000, 0x7E02_0080
FCNTL, TGKILL, PRLIMIT = ALLOWED["fcntl"], ALLOWED["tgkill"], ALLOWED["prlimit64"]
# Commands of fcntl that concern one descriptor, and the command that queries locks of other processes (F_GETLK).
F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 5, 1030
F_SETLK, F_SETLKW = 6, 7


def allow_known() -> None:
    """Restricts this process to the calls of ALLOWED and to the creation of threads. @raises Unsupported"""
    _apply(known_rules)


def deny_escapes() -> None:
    """Denies this process the calls of DENIED, new processes, and changes of its limits. @raises Unsupported"""
    _apply(escape_rules)


def known_rules(column: int) -> list[Rule]:
    rules = _unless_bits(CLONE[column], 0, CLONE_NAMESPACES)
    return [*rules, *return_for_all(ALLOWED.values(), column, ALLOW), (RETURN, 0, 0, UNKNOWN)]


def escape_rules(column: int) -> list[Rule]:
    """The second filter. `column` selects the processor."""
    # clone3 fails with ENOSYS, because a filter cannot read its flags, which are in memory. C libraries then use clone.
    rules = return_for(CLONE3[column], UNKNOWN)
    rules += _if_bits(CLONE[column], 0, CLONE_THREAD)
    # A program may signal itself, which `abort` does.
    rules += _if_equal(TGKILL[column], 0, os.getpid())
    # With a null pointer the call only reads the limits. Both halves of the address must be zero.
    rules += _if_null(PRLIMIT[column], 2)
    rules += _fcntl_rules(FCNTL[column])
    return [*rules, *return_for_all(DENIED.values(), column, DENY), (RETURN, 0, 0, ALLOW)]


def _fcntl_rules(number: int) -> list[Rule]:
    """
    Denies locks that other runs could observe on a shared file, and commands for signals and pipe sizes.

    POSIX locks, which SQLite uses, never block the process that owns them, and a run has only one process. F_SETLK
    therefore returns success without setting a lock, and F_GETLK finds no lock of other processes.
    """
    about_descriptors = (F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC)
    answers = {**dict.fromkeys(about_descriptors, ALLOW), F_SETLK: PRETEND, F_SETLKW: PRETEND}
    rules = [(LOAD, 0, 0, ARGUMENTS + 8)]
    for command, answer in answers.items():
        rules += return_for(command, answer)
    rules.append((RETURN, 0, 0, DENY))
    return [(JUMP_EQUAL, 0, len(rules), number), *rules]


def _apply(rules: Callable[[int], list[Rule]]) -> None:
    column = this_column()
    apply(head_rules(column) + rules(column))


def _if_equal(number: int, argument: int, value: int) -> list[Rule]:
    """Allows the call if the argument has this value, and denies it otherwise."""
    return _checked(number, [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_EQUAL, 0, 1, value)])


def _if_bits(number: int, argument: int, bits: int) -> list[Rule]:
    return _checked(number, [(LOAD, 0, 0, ARGUMENTS + 8 * argument), (JUMP_BITS, 0, 1, bits)])


def _if_null(number: int, argument: int) -> list[Rule]:
    low, high = ARGUMENTS + 8 * argument, ARGUMENTS + 8 * argument + 4
    return _checked(number, [(LOAD, 0, 0, low), (JUMP_EQUAL, 0, 3, 0), (LOAD, 0, 0, high), (JUMP_EQUAL, 0, 1, 0)])


def _unless_bits(number: int, argument: int, bits: int) -> list[Rule]:
    return [
        (JUMP_EQUAL, 0, 4, number),
        (LOAD, 0, 0, ARGUMENTS + 8 * argument),
        (JUMP_BITS, 0, 1, bits),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]


def _checked(number: int, condition: list[Rule]) -> list[Rule]:
    """Allows the call if all rules of the condition hold. A rule that does not hold jumps to the denial."""
    refusal = [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    return [(JUMP_EQUAL, 0, len(condition) + len(refusal), number), *condition, *refusal]
