"""
The guest's side of the WebAssembly sandbox: warms the interpreter once, then runs one program in a copy of it.

Nothing is locked down in here, because the interpreter has no call that reaches the host.
"""

from __future__ import annotations

import json
import os
import sys

import wasm_asyncio

import execution

STDIN, CHANNEL = 0, 3
SCRATCH = "/tmp"
# The reserve is smaller than in other sandboxes, because WebAssembly fills memory with zeros: 4 MiB would take 10 ms
# per run.
RESERVE_BYTES = 1 << 19


def warm(headroom_bytes: int) -> None:
    """
    Imports the libraries and sends their versions.

    The memory afterwards becomes the image from which every run starts. The image has no open files and at least
    `headroom_bytes` of free memory.
    """
    execution.RESERVE_BYTES = RESERVE_BYTES
    wasm_asyncio.make_it_work()
    _send(b"L", json.dumps(execution.warm()).encode())
    # Closes the cached font files, because the image of the interpreter contains only its memory and no open files. The temporary bytearray
    # makes the allocator grow now. The freed memory stays with the allocator and is part of the image.
    sys.modules["matplotlib.font_manager"]._get_font.cache_clear()
    bytearray(headroom_bytes)
    os.chdir(SCRATCH)


def run() -> int:
    """Runs the program that standard input contains. Returns its exit status."""
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
    """Writes one frame: type, length, payload."""
    rest = memoryview(kind + len(payload).to_bytes(4, "big") + payload)
    while rest:
        rest = rest[os.write(CHANNEL, rest) :]
