"""
Thread pools without pipes.

`multiprocessing.pool.ThreadPool` (also named `multiprocessing.dummy.Pool`) wakes its threads by a pipe and a semaphore
for several processes. A program in the sandbox has neither, so the pool uses an eventfd, a counter in the kernel.
"""

from __future__ import annotations

import os
import select
import types

import imports


def make_it_work() -> None:
    """Must be called before multiprocessing is imported. Without eventfd (WebAssembly) there are no threads either."""
    if hasattr(os, "eventfd"):
        imports.when_loaded("multiprocessing.pool", _replace)


def _replace(pool: types.ModuleType) -> None:
    def __init__(self, processes=None, initializer=None, initargs=()):
        pool.Pool.__init__(self, processes, initializer, initargs, context=_Threads)

    pool.ThreadPool.__init__ = __init__


class _Threads:

    @staticmethod
    def SimpleQueue() -> _Notifier:
        return _Notifier()


class _Notifier:
    """A queue that stores only the number of its items. The pool reads `_reader`, which is the queue itself."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._reader = self

    def fileno(self) -> int:
        return self._descriptor

    def put(self, _item: object) -> None:
        os.eventfd_write(self._descriptor, 1)

    def get(self) -> None:
        os.eventfd_read(self._descriptor)

    def empty(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    def __del__(self) -> None:
        os.close(self._descriptor)
