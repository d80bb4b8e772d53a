"""Messages between the server and its child processes: one JSON object per line over a socket pair, with open files."""

from __future__ import annotations

import json
import os
import select
import socket
import time

from errors import ClientGone

FILES_MAX = 8
LINE_BYTES_MAX = 4 * 1024 * 1024


class Channel:
    """One end of a socket pair. Either side closes it to stop the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = bytearray()
        self._files: list[int] = []

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        self.sock.close()
        while self._files:
            os.close(self._files.pop())

    def send(self, message: dict, files: tuple[int, ...] = ()) -> None:
        line = json.dumps(message).encode() + b"\n"
        sent = socket.send_fds(self.sock, [line], list(files)) if files else 0
        self.sock.sendall(line[sent:])

    def receive(self) -> tuple[dict, list[int]] | None:
        """Returns the next object and its files, which the caller must close; None if the channel was closed."""
        while self._lacks_line():
            if not self._fill():
                return None
        return self._take()

    def wait(self, client: socket.socket | None, deadline: float) -> tuple[dict, list[int]] | None:
        """
        As `receive`, but ends when the client disconnects or the deadline passes.

        `deadline` is a time of `time.monotonic()`. Raises ClientGone or TimeoutError.
        """
        while self._lacks_line():
            wait_readable(self.sock, client, deadline)
            if not self._fill():
                return None
        return self._take()

    def _lacks_line(self) -> bool:
        if len(self._data) > LINE_BYTES_MAX:
            raise ValueError("a message is too long")
        return self._data.find(b"\n") < 0

    def _fill(self) -> bool:
        try:
            data, files, _, _ = socket.recv_fds(self.sock, 65_536, FILES_MAX)
        except ConnectionResetError:
            return False
        self._data += data
        self._files += files
        return bool(data)

    def _take(self) -> tuple[dict, list[int]]:
        end = self._data.index(b"\n")
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        files, self._files = self._files, []
        return json.loads(line), files


def wait_readable(sock: socket.socket, client: socket.socket | None, deadline: float) -> None:
    """Returns when `sock` has data to read or was closed. Raises ClientGone if the client disconnects; TimeoutError."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    if client is not None:
        poll.register(client, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        ready = {fd for fd, _ in poll.poll(left * 1000)}
        if sock.fileno() in ready:
            return
        if client is not None and client.fileno() in ready:
            if is_gone(client):
                raise ClientGone
            # The client has sent further data, so it is still connected. The socket stays readable, so polling it again would be a busy loop.
            poll.unregister(client)


def has_left(client: socket.socket) -> bool:
    poll = select.poll()
    poll.register(client, select.POLLIN)
    return bool(poll.poll(0)) and is_gone(client)


def is_gone(client: socket.socket) -> bool:
    """Whether a readable socket was closed by the other side. Otherwise it has data."""
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
