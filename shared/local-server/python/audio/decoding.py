"""Converts uploaded audio to samples, by the fork server of the decoder."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from typing import BinaryIO

from audio.decoder import Limits
from channel import Channel
from errors import ApiError
from slots import Slots

RATE = 16_000
CPU_SECONDS = 120
WALL_SECONDS = 300
MEMORY_BYTES = 1 << 30
AT_ONCE = max(1, min(4, os.cpu_count() or 1))
WAITING_MAX = 64


@dataclass
class Audio:
    """Decoded audio: an unnamed temporary file of mono signed 16-bit samples, and facts about the upload. The
    caller closes it."""

    samples: BinaryIO
    rate: int
    duration: float
    container: str
    codec: str
    channels: int
    sample_rate: int

    def close(self) -> None:
        self.samples.close()


class Decoder:
    """Client of the fork server, which is started on first use and after each crash."""

    def __init__(self, directory: str, seconds_max: float, command: list[str]) -> None:
        self._directory = directory
        self._seconds_max = seconds_max
        self._command = command
        self._lock = threading.Lock()
        self._slots = Slots(AT_ONCE, WAITING_MAX)
        self._server: tuple[subprocess.Popen, Channel] | None = None

    def decode(
        self, file: BinaryIO, client: socket.socket | None, rate: int = RATE, seconds_max: float = float("inf")
    ) -> Audio:
        """
        Decodes a file from its start. Its maximum length is `seconds_max` or the server's own limit, if that is lower.

        Raises ApiError `invalid_audio`, `audio_too_short`, `audio_too_long`, or `internal_error` if the file is not the
        cause. Raises ClientGone after the decoding was stopped.
        """
        limits = Limits(rate, min(seconds_max, self._seconds_max), CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES)
        with self._slots.take(client):
            samples = tempfile.TemporaryFile(dir=self._directory)
            try:
                facts = self._ask(limits, file, samples, client)
                if "code" in facts:
                    raise _refusal(facts["code"], facts["message"])
                samples.seek(0)
                return Audio(samples, rate, **facts)
            except BaseException:
                samples.close()
                raise

    def _ask(self, limits: Limits, file: BinaryIO, samples: BinaryIO, client: socket.socket | None) -> dict:
        file.flush()
        file.seek(0)
        ours, theirs = socket.socketpair()
        answer = Channel(ours)
        try:
            with theirs, self._lock:
                self._channel().send(asdict(limits), (file.fileno(), samples.fileno(), theirs.fileno()))
            # The fork server limits the time of its child. This longer timeout ends the wait if the fork server itself
            # hangs.
            found = answer.wait(client, time.monotonic() + limits.wall_seconds + 30)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            found = None
        finally:
            answer.close()
        if found is None:
            raise ApiError("internal_error", "The audio decoder failed.", status=500)
        return found[0]

    def _channel(self) -> Channel:
        """Returns the channel of the fork server, which is started if needed. The caller has the lock."""
        if self._server is not None:
            process, channel = self._server
            if process.poll() is None:
                return channel
            channel.close()
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([*self._command, "decode"], stdin=theirs.fileno())
        self._server = (process, Channel(ours))
        return self._server[1]


def _refusal(code: str, message: str) -> ApiError:
    if code == "internal_error":
        return ApiError(code, message, status=500)
    return ApiError(code, message, param="file")
