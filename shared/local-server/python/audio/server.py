"""
The fork server of the decoder forks one process for each file. PyAV is loaded, but no model and no secret.

A request on the channel at descriptor 0 contains the limits and three files: source, target and a socket for the
reply. If the server closes its end of that socket, the decoding process is killed.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass

from audio import decoder
from audio.decoder import Limits, Refused
from channel import Channel
from confine import confinement, filters

TOO_COSTLY = "The file takes too much time or memory to decode."


@dataclass
class Child:

    pid: int
    answer: socket.socket
    deadline: float


def main() -> None:
    """Serves until the channel is closed, then kills the processes that still run."""
    asks = Channel(socket.socket(fileno=0))
    wake, waker = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    decoder.load()
    children: list[Child] = []
    while True:
        _reap(children)
        ready = _wait(asks, wake, children)
        if wake in ready:
            os.read(wake, 4096)
        for child in children:
            if child.answer.fileno() in ready or child.deadline < time.monotonic():
                os.kill(child.pid, signal.SIGKILL)
        if asks.fileno() in ready:
            ask = asks.receive()
            if ask is None:
                break
            children.append(_fork(*ask))
    for child in children:
        os.kill(child.pid, signal.SIGKILL)


def _wait(asks: Channel, wake: int, children: list[Child]) -> set[int]:
    poll = select.poll()
    for descriptor in (asks.fileno(), wake):
        poll.register(descriptor, select.POLLIN)
    for child in children:
        # The server never sends data on this socket. If the socket becomes readable, then the server has closed its end.
        poll.register(child.answer, select.POLLIN)
    first = min((child.deadline for child in children), default=None)
    timeout = None if first is None else max(0, first - time.monotonic()) * 1000
    return {descriptor for descriptor, _ in poll.poll(timeout)}


def _reap(children: list[Child]) -> None:
    for child in list(children):
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid == 0:
            continue
        children.remove(child)
        try:
            if status != 0:
                # A resource limit killed the process, or a decoder of FFmpeg crashed.
                _answer(child.answer, {"code": "invalid_audio", "message": TOO_COSTLY})
        except OSError:
            pass
        child.answer.close()


def _fork(ask: dict, files: list[int]) -> Child:
    limits = Limits(**ask)
    source, target, answer = files
    sock = socket.socket(fileno=answer)
    pid = os.fork()
    if pid == 0:
        # The child must exit here and never return into the loop of the fork server.
        try:
            _run(limits, source, target, sock)
            os._exit(0)
        except BaseException as error:
            print(f"decoding failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    os.close(source)
    os.close(target)
    return Child(pid, sock, time.monotonic() + limits.wall_seconds)


def _run(limits: Limits, source: int, target: int, sock: socket.socket) -> None:
    confinement.die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answer = sock.fileno()
    _close_all_but({1, 2, source, target, answer})
    bytes_max = int(limits.seconds_max + 60) * limits.rate * 2
    for name, value in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, bytes_max),
        (resource.RLIMIT_CORE, 0),
    ):
        confinement.lower_limit(name, value)
    # The file is not closed here, because closing would repeat writes that a full disk refused. The process ends soon.
    samples = os.fdopen(target, "wb", buffering=1 << 18)
    with os.fdopen(source, "rb") as audio:
        filters.allow_only_computing()
        try:
            facts = decoder.decode(audio, samples, limits)
        except Refused as refused:
            facts = {"code": refused.code, "message": str(refused)}
    os.write(answer, json.dumps(facts).encode() + b"\n")


def _close_all_but(kept: set[int]) -> None:
    """Closes descriptors that the fork server holds for other files."""
    for descriptor in range(confinement.FILES_MAX):
        if descriptor not in kept:
            try:
                os.close(descriptor)
            except OSError:
                pass


def _answer(sock: socket.socket, message: dict) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")
