"""Runs speech jobs in worker processes that can be killed at any moment."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

from audio.decoding import Audio
from channel import Channel
from errors import ApiError
from slots import Slots

# Each worker has a model of its own (300 MB) and one thread, because two threads take a third more CPU per text.
WORKERS = min(4, os.cpu_count() or 1)
WAITING_MAX = 32
# Timeout of a job: a base, plus a part per second of audio. The values are so large that even on a slow machine only a
# job that hangs exceeds them.
SECONDS_BASE, SECONDS_PER_SECOND = 120, 10


class Speech:
    """The worker processes. A process is started when a job needs one and none is idle."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._slots = Slots(WORKERS, WAITING_MAX)
        self._lock = threading.Lock()
        self._idle: list[tuple[subprocess.Popen, Channel]] = []

    def run(self, job: dict, audio: list[Audio], client: socket.socket | None) -> Iterator[dict]:
        """
        Yields the messages of a job; the last one contains `done`.

        If the iterator is closed early, the job is stopped. If the client disconnects, the job is stopped too and
        ClientGone is raised. Raises ApiError `overloaded`, or `internal_error` if the worker fails.
        """
        with self._slots.take(client):
            process, channel = self._take()
            is_whole = False
            try:
                channel.send(job, tuple(each.samples.fileno() for each in audio))
                deadline = time.monotonic() + SECONDS_BASE + SECONDS_PER_SECOND * audio[0].duration
                while not is_whole:
                    message = _next(channel, client, deadline)
                    is_whole = "done" in message
                    yield message
            except BrokenPipeError:
                raise failed() from None
            finally:
                self._give_back(process, channel, is_whole)

    def _take(self) -> tuple[subprocess.Popen, Channel]:
        with self._lock:
            while self._idle:
                process, channel = self._idle.pop()
                if process.poll() is None:
                    return process, channel
                channel.close()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([*self._command, "speak"], stdin=theirs.fileno())
        return process, Channel(ours)

    def _give_back(self, process: subprocess.Popen, channel: Channel, is_whole: bool) -> None:
        if is_whole:
            with self._lock:
                self._idle.append((process, channel))
            return
        process.kill()
        channel.close()
        process.wait()


def _next(channel: Channel, client: socket.socket | None, deadline: float) -> dict:
    try:
        found = channel.wait(client, deadline)
    except TimeoutError:
        raise ApiError("internal_error", "The speech model did not respond in time.", status=500) from None
    if found is None or "error" in found[0]:
        raise failed()
    return found[0]


def failed() -> ApiError:
    return ApiError("internal_error", "The speech model failed.", status=500)
