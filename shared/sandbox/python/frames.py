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
import struct

MAGIC = b"\x00SANDBOX"
HEAD = struct.Struct(">cI")
LENGTH = struct.Struct(">I")
JOB_BYTES_MAX = 1 << 20
READ_BYTES = 1 << 16


class Closed(Exception):
    """The other side is gone, or does not speak as it should."""


def write(descriptor: int, kind: bytes, payload: bytes) -> None:
    """Writes a whole frame, however many calls it takes."""
    rest = memoryview(HEAD.pack(kind, len(payload)) + payload)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_json(descriptor: int, kind: bytes, value: object) -> None:
    """Writes a frame that holds JSON."""
    write(descriptor, kind, json.dumps(value).encode())


def read_job(descriptor: int) -> dict:
    """Waits for a job. @raises Closed"""
    seen = b""
    while not seen.endswith(MAGIC):
        seen = (seen + _read_exactly(descriptor, 1))[-len(MAGIC) :]
    (length,) = LENGTH.unpack(_read_exactly(descriptor, LENGTH.size))
    if length > JOB_BYTES_MAX:
        raise Closed(f"a job of {length} bytes")
    return json.loads(_read_exactly(descriptor, length))


def _read_exactly(descriptor: int, count: int) -> bytes:
    parts = []
    while count > 0:
        part = os.read(descriptor, min(count, READ_BYTES))
        if not part:
            raise Closed("the connection ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
