"""
asyncio without sockets.

Its loops wake themselves, when another thread calls, through a pair of sockets. What lies in the buffers of sockets is
memory of the kernel that no limit of a run counts, so a program has none: here a loop has a counter of the kernel's
(eventfd), which holds eight bytes.
"""

from __future__ import annotations

import os
import types

import imports

MODULE = "asyncio.selector_events"
ONE = 1


def make_it_work() -> None:
    """Event loops take no sockets. Before asyncio is imported."""
    imports.when_loaded(MODULE, _replace)


def _replace(selector_events: types.ModuleType) -> None:
    selector_events.BaseSelectorEventLoop._make_self_pipe = _make_wakeup


def _make_wakeup(loop) -> None:
    """As the original, which makes two sockets; the rest of the loop takes these for them."""
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    loop._ssock, loop._csock = _Sleeper(descriptor), _Waker(descriptor)
    loop._internal_fds += 1
    loop._add_reader(descriptor, loop._read_from_self)


class _Sleeper:
    """The end that a loop waits for. It owns the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def recv(self, _bytes_max: int) -> bytes:
        """@raises BlockingIOError when nobody has called since the last time"""
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        os.close(self._descriptor)


class _Waker:
    """The end that other threads call."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """@raises OSError always: a loop asks only to have signals written into it, which takes a socket or a pipe"""
        raise OSError("signals cannot be handled by an event loop in a sandbox")

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._descriptor, ONE)
        return len(data)

    def close(self) -> None:
        self._descriptor = -1
