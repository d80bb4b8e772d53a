"""
System calls that a program may make, by two filters.

The first lets through what Python and its libraries use, and answers ENOSYS to the rest, as an older kernel would, so
that a C library falls back. The second refuses with EPERM what leads out, whatever the first one says: another
process, a namespace, the means that the sandbox itself was made with, memory that no limit counts (sockets and pipes,
whose buffers are the kernel's), and what runs of one user share: locks on files, descriptors on their way.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from seccomp.assembler import (
    ALLOW, ARGUMENTS, DENY, ERRNO, JUMP_BITS, JUMP_EQUAL, LOAD, RETURN, UNKNOWN, Rule, apply, head_rules, return_for,
    return_for_all, this_column,
)  # fmt: skip
from seccomp.calls import ALLOWED, CLONE, CLONE3, DENIED

# The call is not made, and answers 0.
PRETEND = ERRNO
CLONE_THREAD, CLONE_NAMESPACES = 0x0001_0000, 0x7E02_0080
FCNTL, TGKILL, PRLIMIT = ALLOWED["fcntl"], ALLOWED["tgkill"], ALLOWED["prlimit64"]
# Commands of fcntl that are about a descriptor, and the one that asks for the locks of other processes.
F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 5, 1030
F_SETLK, F_SETLKW = 6, 7


def allow_known() -> None:
    """For this process: only ALLOWED, and what makes threads. @raises Unsupported"""
    _apply(known_rules)


def deny_escapes() -> None:
    """For this process: nothing of DENIED, no other processes, no changed limits. @raises Unsupported"""
    _apply(escape_rules)


def known_rules(column: int) -> list[Rule]:
    """The first filter, for the processor of a column of the tables."""
    rules = _unless_bits(CLONE[column], 0, CLONE_NAMESPACES)
    return [*rules, *return_for_all(ALLOWED.values(), column, ALLOW), (RETURN, 0, 0, UNKNOWN)]


def escape_rules(column: int) -> list[Rule]:
    """The second filter."""
    # The flags of clone3 are in memory, where a filter cannot look; C libraries then use clone.
    rules = return_for(CLONE3[column], UNKNOWN)
    rules += _if_bits(CLONE[column], 0, CLONE_THREAD)
    # Signals to itself are how a program aborts.
    rules += _if_equal(TGKILL[column], 0, os.getpid())
    # With a null pointer it only asks. Both halves of the address count.
    rules += _if_null(PRLIMIT[column], 2)
    rules += _fcntl_rules(FCNTL[column])
    return [*rules, *return_for_all(DENIED.values(), column, DENY), (RETURN, 0, 0, ALLOW)]


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
        rules += return_for(command, answer)
    rules.append((RETURN, 0, 0, DENY))
    return [(JUMP_EQUAL, 0, len(rules), number), *rules]


def _apply(rules: Callable[[int], list[Rule]]) -> None:
    column = this_column()
    apply(head_rules(column) + rules(column))


def _if_equal(number: int, argument: int, value: int) -> list[Rule]:
    """Allows a call when its argument is this; the number is loaded again for the rules that follow."""
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
    """The last rule of the condition falls through when it holds, and each skips to the refusal when it does not."""
    refusal = [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, DENY)]
    return [(JUMP_EQUAL, 0, len(condition) + len(refusal), number), *condition, *refusal]
