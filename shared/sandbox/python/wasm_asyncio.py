"""
asyncio without sockets.

An event loop normally has a pair of sockets, by which threads and signals wake it. Under WebAssembly there are no
threads, signals or sockets, so the loop has no such pair.
"""

from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop


def make_it_work() -> None:
    """Makes event loops start without a pair of sockets. Timers and tasks work as usual."""
    BaseSelectorEventLoop._make_self_pipe = _without_pair
    BaseSelectorEventLoop._close_self_pipe = _without_pair
    BaseSelectorEventLoop._write_to_self = _nothing_to_wake


def _without_pair(loop: BaseSelectorEventLoop) -> None:
    loop._ssock = loop._csock = None


def _nothing_to_wake(loop: BaseSelectorEventLoop) -> None:
    """Does nothing: every caller runs in the thread of the loop, which is therefore awake."""
