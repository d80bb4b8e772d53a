"""What comes out of a run, on its way through the supervisor: two streams with caps, and the child's own channel."""

from __future__ import annotations

import json
from collections.abc import Callable

from supervise.frames import HEAD

PNG = b"\x89PNG\r\n\x1a\n"


class Capped:
    """A stream up to its cap. The rest is dropped, and a last line says so."""

    def __init__(self, bytes_max: int, send: Callable[[bytes], None]) -> None:
        self._left = bytes_max
        self._bytes = 0
        self._is_cut = False
        self._pending = b""
        self._send = send

    def take(self, data: bytes) -> None:
        """The next piece, empty at the end."""
        self._bytes += len(data)
        pending = self._pending + data
        fits = min(len(pending), self._left)
        self._is_cut = self._is_cut or fits < len(pending)
        # Pipes give pieces that end within a character: the rest of it may be beyond the cap.
        count = _whole_characters(pending, fits) if data or self._is_cut else fits
        self._pending = b"" if self._is_cut else pending[count:]
        self._left = 0 if self._is_cut else self._left - count
        if count:
            self._send(pending[:count])

    def finish(self) -> None:
        """Gives what is left, and says the last line."""
        self.take(b"")
        if self._is_cut:
            self._send(f"\n[output truncated: {self._bytes} bytes in all]\n".encode())


class Control:
    """
    The frames of the child: a verdict before the program starts, then plots.

    The program can write here too. So only the first verdict counts, and what is no frame, or too large, makes this deaf.
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
        """The next bytes, empty at the end."""
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
            # The first one was written before the program had a say.
            if self.violations is None:
                self.violations = json.loads(payload)["violations"]
        elif self.violations is not None and payload.startswith(PNG):
            self._plots += 1
            self._plots_bytes += len(payload)
            if self._plots <= self._limits["plots"] and self._plots_bytes <= self._limits["plots_bytes"]:
                self._send_plot(payload)


def _whole_characters(data: bytes, count: int) -> int:
    """As many bytes, or up to three less, so that no UTF-8 character is cut."""
    for back in range(1, min(count, 3) + 1):
        byte = data[count - back]
        if byte & 0xC0 != 0x80:
            length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return count - back if length > back else count
    return count
