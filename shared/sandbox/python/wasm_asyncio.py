"""
asyncio without sockets.

Its loops wake themselves through a pair of sockets when another thread or a signal calls. Here there are neither
threads nor signals, and no sockets.
"""

from __future__ import annotations

from asyncio.selector_events import BaseSelectorEventLoop


def make_it_work() -> None:
    """Lets event loops start without the pair. Timers and tasks work as ever."""
    BaseSelectorEventLoop._make_self_pipe = _without_pair
    BaseSelectorEventLoop._close_self_pipe = _without_pair
    BaseSelectorEventLoop._write_to_self = _nothing_to_wake


def _without_pair(loop: BaseSelectorEventLoop) -> None:
    loop._ssock = loop._csock = None


def _nothing_to_wake(loop: BaseSelectorEventLoop) -> None:
    """Whoever calls runs in the loop's own thread."""
