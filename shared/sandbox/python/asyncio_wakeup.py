"""
asyncio without sockets.

An event loop normally has a pair of sockets, by which other threads wake it. A program in the sandbox has no sockets,
because their buffers are kernel memory that no limit of a run counts. Here the loop is woken by an eventfd instead, a
kernel counter of eight bytes.
"""

from __future__ import annotations

import os
import types

import imports

MODULE = "asyncio.selector_events"
ONE = 1


def make_it_work() -> None:
    """Makes event loops use an eventfd instead of sockets. Must be called before asyncio is imported."""
    imports.when_loaded(MODULE, _replace)


def _replace(selector_events: types.ModuleType) -> None:
    selector_events.BaseSelectorEventLoop._make_self_pipe = _make_wakeup


def _make_wakeup(loop) -> None:
    """Replaces `_make_self_pipe`. The rest of the loop uses the two objects like the sockets of the original."""
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    loop._ssock, loop._csock = _Sleeper(descriptor), _Waker(descriptor)
    loop._internal_fds += 1
    loop._add_reader(descriptor, loop._read_from_self)


class _Sleeper:
    """The reading end, for which the loop waits. This object owns the descriptor and closes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def recv(self, _bytes_max: int) -> bytes:
        """@raises BlockingIOError if there was no wake-up since the last call"""
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        os.close(self._descriptor)


class _Waker:
    """The writing end, which other threads use to wake the loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """@raises OSError always: a loop needs this number only to receive signals, which is not possible with an
        eventfd"""
        raise OSError("signals cannot be handled by an event loop in a sandbox")

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._descriptor, ONE)
        return len(data)

    def close(self) -> None:
        self._descriptor = -1
