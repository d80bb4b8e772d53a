"""Output of a run inside the supervisor: two streams with limits, and the channel of the child."""

from __future__ import annotations

import json
from collections.abc import Callable

from supervise.frames import HEAD

PNG = b"\x89PNG\r\n\x1a\n"


class Capped:
    """An output stream with a limit. Further bytes are dropped, and a last line reports that."""

    def __init__(self, bytes_max: int, send: Callable[[bytes], None]) -> None:
        self._left = bytes_max
        self._bytes = 0
        self._is_cut = False
        self._pending = b""
        self._send = send

    def take(self, data: bytes) -> None:
        """Adds the next piece; an empty piece ends the stream."""
        self._bytes += len(data)
        pending = self._pending + data
        fits = min(len(pending), self._left)
        self._is_cut = self._is_cut or fits < len(pending)
        # A piece may end in the middle of a character, and the rest of that character may exceed the limit. The
        # character is then left out.
        count = _whole_characters(pending, fits) if data or self._is_cut else fits
        self._pending = b"" if self._is_cut else pending[count:]
        self._left = 0 if self._is_cut else self._left - count
        if count:
            self._send(pending[:count])

    def finish(self) -> None:
        """Sends the remaining bytes, and the last line if output was dropped."""
        self.take(b"")
        if self._is_cut:
            self._send(f"\n[output truncated: {self._bytes} bytes in all]\n".encode())


class Control:
    """
    Reads the frames of the child: one verdict before the program starts, then plots.

    The program can write to this channel too. Therefore only the first verdict counts. After an invalid or too large
    frame, all further bytes are ignored.
    """

    def __init__(self, limits: dict, send_plot: Callable[[bytes], None]) -> None:
        self.violations: list[str] | None = None
        self._limits = limits
        self._send_plot = send_plot
        self._plots = 0
        self._plots_bytes = 0
        self._is_deaf = False
        self._buffer = bytearray()

    def take(self, data: bytes) -> None:
        """Adds the next bytes; empty at the end."""
        if self._is_deaf:
            return
        self._buffer += data
        while len(self._buffer) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._buffer)
            if kind not in (b"V", b"P") or length > self._limits["plot_bytes"]:
                self._is_deaf = True
                self._buffer.clear()
                return
            end = HEAD.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEAD.size : end])
            del self._buffer[:end]
            self._handle(kind, payload)

    def _handle(self, kind: bytes, payload: bytes) -> None:
        if kind == b"V":
            # Only the first verdict is used. The program may write to the same channel, but the first verdict was
            # written before the program started.
            if self.violations is None:
                self.violations = json.loads(payload)["violations"]
        elif self.violations is not None and payload.startswith(PNG):
            self._plots += 1
            self._plots_bytes += len(payload)
            if self._plots <= self._limits["plots"] and self._plots_bytes <= self._limits["plots_bytes"]:
                self._send_plot(payload)


def _whole_characters(data: bytes, count: int) -> int:
    """Returns `count` or up to three bytes less, so that no UTF-8 character is split."""
    for back in range(1, min(count, 3) + 1):
        byte = data[count - back]
        if byte & 0xC0 != 0x80:
            length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return count - back if length > back else count
    return count
