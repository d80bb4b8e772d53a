"""Reads request bodies up to a maximum size. Large ones are stored on disk, not in memory."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPMessage
from typing import BinaryIO

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from errors import ApiError, ClientGone

PIECE = 65_536
FIELDS_MAX = 64
# Maximum bytes of a text field. A speaker sample of 10 s of stereo WAV has 1.8 MB, which is 2.4 MB in base64. A form
# may contain four such fields.
FIELD_BYTES_MAX = 8 * 1024 * 1024
JSON_BYTES_MAX = 32 * 1024 * 1024


class Body:
    """The body of one request, with either framing of HTTP/1.1 (RFC 9112 §6)."""

    def __init__(self, source: BinaryIO, headers: HTTPMessage, bytes_max: int) -> None:
        self._source = source
        self._left_max = bytes_max
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length", "0")
        if not self._chunked and not length.isdecimal():
            raise ApiError("invalid_request", "The Content-Length is not a number.")
        # Number of bytes that remain of the current chunk, or of the whole body if it is not chunked.
        self._left = 0 if self._chunked else int(length)
        self.is_complete = not self._chunked and self._left == 0

    def pieces(self) -> Iterator[bytes]:
        """Yields the body in pieces of at most 64 KiB. Raises ApiError `request_too_large` above the maximum size."""
        while not self.is_complete:
            if self._chunked and self._left == 0 and not self._next_chunk():
                return
            piece = self._source.read(min(PIECE, self._left))
            if not piece:
                raise ClientGone
            self._left -= len(piece)
            if self._chunked and self._left == 0:
                self._source.readline(PIECE)
            self.is_complete = not self._chunked and self._left == 0
            self._left_max -= len(piece)
            if self._left_max < 0:
                raise ApiError("request_too_large", "The request is larger than the server accepts.", status=413)
            yield piece

    def discard(self, bytes_max: int) -> None:
        """Reads and discards the rest of the body. A client that is still sending can then read the answer."""
        self._left_max = bytes_max
        try:
            for _ in self.pieces():
                pass
        except ApiError:
            pass

    def _next_chunk(self) -> bool:
        line = self._source.readline(1024).split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError:
            raise ClientGone from None
        if self._left > 0:
            return True
        while self._source.readline(PIECE).strip():
            pass
        self.is_complete = True
        return False


def read_json(body: Body) -> dict:
    data = bytearray()
    for piece in body.pieces():
        data += piece
        if len(data) > JSON_BYTES_MAX:
            raise ApiError("request_too_large", f"The request is larger than {JSON_BYTES_MAX} bytes.", status=413)
    try:
        value = json.loads(data)
    except ValueError:
        raise ApiError("invalid_request", "The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise ApiError("invalid_request", "The body must be a JSON object.")
    return value


def spool(body: Body, directory: str) -> BinaryIO:
    """Stores the whole body in a file without a name, and returns the file at its start."""
    file = tempfile.TemporaryFile(dir=directory)
    for piece in body.pieces():
        file.write(piece)
    file.seek(0)
    return file


@dataclass
class Form:
    """A multipart form: its file, and its text fields by name. A trailing `[]` is removed from names."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    file: BinaryIO | None = None

    def get(self, name: str) -> str | None:
        values = self.fields.get(name)
        return values[-1] if values else None

    def list(self, name: str) -> list[str]:
        return self.fields.get(name, [])

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def read_form(body: Body, content_type: str, directory: str) -> Form:
    """Reads a multipart body. The part `file` is stored in a file without a name in `directory`."""
    kind, options = parse_options_header(content_type)
    if kind != "multipart/form-data" or not options.get("boundary"):
        raise ApiError("unsupported_media_type", "The body must be multipart/form-data.", status=415)
    form = Form()
    try:
        _parse(form, body, options["boundary"], directory)
    except MultipartError:
        form.close()
        raise ApiError("invalid_request", "The body is not valid multipart/form-data.") from None
    except BaseException:
        form.close()
        raise
    return form


def _parse(form: Form, body: Body, boundary: str, directory: str) -> None:
    part: MultipartSegment | None = None
    text = bytearray()
    with PushMultipartParser(boundary, max_segment_count=FIELDS_MAX) as parser:
        for piece in body.pieces():
            for event in parser.parse(piece):
                if isinstance(event, MultipartSegment):
                    part = event
                    text.clear()
                    if part.name == "file" and form.file is None:
                        form.file = tempfile.TemporaryFile(dir=directory)
                elif part is not None and part.name == "file" and form.file is not None:
                    if event is not None:
                        form.file.write(event)
                elif event is not None:
                    text += event
                    if len(text) > FIELD_BYTES_MAX:
                        name = part.name if part is not None else None
                        raise ApiError("request_too_large", f"A form field is larger than {FIELD_BYTES_MAX} bytes.", status=413, param=name)
                elif part is not None:
                    form.fields.setdefault(part.name.removesuffix("[]"), []).append(text.decode(errors="replace"))
    if form.file is not None:
        form.file.seek(0)
