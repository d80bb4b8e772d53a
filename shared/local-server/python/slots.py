"""A semaphore with a bounded waiting queue."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from channel import has_left
from errors import ApiError, ClientGone

LOOK_SECONDS = 0.25


class Slots:
    """Admits `at_once` callers; up to `waiting_max` more wait. Further callers get `overloaded` (503)."""

    def __init__(self, at_once: int, waiting_max: int) -> None:
        self._places = threading.Semaphore(at_once)
        self._lock = threading.Lock()
        self._inside_max = at_once + waiting_max
        self._inside = 0

    @contextlib.contextmanager
    def take(self, client: socket.socket | None) -> Iterator[None]:
        """Waits for a slot. Raises ApiError `overloaded` if too many callers wait, or ClientGone."""
        with self._lock:
            if self._inside >= self._inside_max:
                raise ApiError("overloaded", "Too many calls wait for the local model server.", status=503)
            self._inside += 1
        try:
            while not self._places.acquire(timeout=LOOK_SECONDS):
                if client is not None and has_left(client):
                    raise ClientGone
            try:
                yield
            finally:
                self._places.release()
        finally:
            with self._lock:
                self._inside -= 1
