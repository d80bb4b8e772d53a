"""
Frames from a supervisor to the service, and from the child to its supervisor.

    frame = type (1 byte) · length (4 bytes, big-endian) · payload

Frames to the service: R ready (versions as JSON), O stdout, E stderr, P a plot (PNG), X the end of the run (JSON of
a SandboxEnd). Frames from the child, on descriptor 3: V the verdict of the scan (JSON), P a plot.

The service sends a job as MAGIC, length, JSON. Bytes before MAGIC are skipped, because Docker's client first writes
its own options.
"""

from __future__ import annotations

import json
import os
import select
import struct

MAGIC = b"\x00SANDBOX"
HEAD = struct.Struct(">cI")
LENGTH = struct.Struct(">I")
# Maximum size of a job: its code, and its files in base64.
JOB_BYTES_MAX = 24 << 20
READ_BYTES = 1 << 16


class Closed(Exception):
    """The connection was closed, or its data violates the protocol."""


def write(descriptor: int, kind: bytes, payload: bytes) -> None:
    _write_all(descriptor, HEAD.pack(kind, len(payload)) + payload)


def write_json(descriptor: int, kind: bytes, value: object) -> None:
    write(descriptor, kind, json.dumps(value).encode())


def write_job(descriptor: int, job: dict) -> None:
    body = json.dumps(job).encode()
    _write_all(descriptor, MAGIC + LENGTH.pack(len(body)) + body)


class JobReader:

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = b""
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def has_come(self, wait_ms: int = 0) -> bool:
        """Whether a job begins to arrive or the connection was closed. Waits at most `wait_ms` for each byte."""
        while self._seen != MAGIC and self._poll.poll(wait_ms):
            try:
                self._skip()
            except Closed:
                return True
        return self._seen == MAGIC

    def read(self) -> dict:
        """Waits for the job and returns it. @raises Closed"""
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
