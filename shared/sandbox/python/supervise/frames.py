"""
The frames in which a supervisor speaks to the service, and its child to the supervisor.

    frame = type (1 byte) · length (4 bytes, big-endian) · payload

To the service: R ready (JSON versions), O and E a piece of stdout and stderr, P a plot (PNG), X the end (JSON, a
SandboxEnd on the wire). From the child, on descriptor 3: V verdict of the scan (JSON), P a plot. A job comes the other
way: MAGIC, length, JSON. Whatever precedes MAGIC is skipped: Docker's client writes its own options first.
"""

from __future__ import annotations

import json
import os
import select
import struct

MAGIC = b"\x00SANDBOX"
HEAD = struct.Struct(">cI")
LENGTH = struct.Struct(">I")
# The code and its files, in base64.
JOB_BYTES_MAX = 24 << 20
READ_BYTES = 1 << 16


class Closed(Exception):
    """The other side is gone, or does not speak as it should."""


def write(descriptor: int, kind: bytes, payload: bytes) -> None:
    """Writes a whole frame, however many calls it takes."""
    _write_all(descriptor, HEAD.pack(kind, len(payload)) + payload)


def write_json(descriptor: int, kind: bytes, value: object) -> None:
    """Writes a frame that holds JSON."""
    write(descriptor, kind, json.dumps(value).encode())


def write_job(descriptor: int, job: dict) -> None:
    """Writes a job as JobReader reads it."""
    body = json.dumps(job).encode()
    _write_all(descriptor, MAGIC + LENGTH.pack(len(body)) + body)


class JobReader:
    """Reads one job."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def has_come(self, wait_ms: int = 0) -> bool:
        """Whether one begins to come, or the other side is gone; waits no longer than that for the next byte."""
        while self._seen != MAGIC and self._poll.poll(wait_ms):
            try:
                self._skip()
            except Closed:
                return True
        return self._seen == MAGIC

    def read(self) -> dict:
        """Waits for it. @raises Closed"""
        while self._seen != MAGIC:
            self._skip()
        (length,) = LENGTH.unpack(_read_exactly(self._descriptor, LENGTH.size))
        if length > JOB_BYTES_MAX:
            raise Closed(f"a job of {length} bytes")
        return json.loads(_read_exactly(self._descriptor, length))

    def _skip(self) -> None:
        self._seen = (self._seen + _read_exactly(self._descriptor, 1))[-len(MAGIC) :]


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count > 0:
        part = os.read(descriptor, min(count, READ_BYTES))
        if not part:
            raise Closed("the connection ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
