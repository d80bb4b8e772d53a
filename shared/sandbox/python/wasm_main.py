"""
The guest's side of the WebAssembly sandbox: warms the interpreter once, then runs one program in a copy of it.

The walls are around the interpreter: it has no call that reaches the host, so there is nothing to lock down in here.
"""

from __future__ import annotations

import json
import os
import sys

import wasm_asyncio

import execution

STDIN, CHANNEL = 0, 3
SCRATCH = "/tmp"
# Elsewhere a reserve costs nothing until it is used; here its zeros are written, for 10 ms a run at 4 MiB.
RESERVE_BYTES = 1 << 19


def warm(headroom_bytes: int) -> None:
    """
    Imports the libraries, and tells their versions.

    What is in memory afterwards is the image of every run: with so many free bytes and no open files.
    """
    execution.RESERVE_BYTES = RESERVE_BYTES
    wasm_asyncio.make_it_work()
    _send(b"L", json.dumps(execution.warm()).encode())
    # Fonts are open files, which are not in memory; what is allocated and let go stays with the allocator.
    sys.modules["matplotlib.font_manager"]._get_font.cache_clear()
    bytearray(headroom_bytes)
    os.chdir(SCRATCH)


def run() -> int:
    """Runs the program that is on standard input; gives its exit status."""
    job = json.loads(_read_all())
    return execution.execute(
        job["code"], scan=job["scan"], files=job["files"], emit=_send, lock_down=lambda: None
    )


def _read_all() -> bytes:
    parts = []
    while part := os.read(STDIN, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def _send(kind: bytes, payload: bytes) -> None:
    """One frame: type, length, payload."""
    rest = memoryview(kind + len(payload).to_bytes(4, "big") + payload)
    while rest:
        rest = rest[os.write(CHANNEL, rest) :]
