"""HTTP on a UNIX socket: the routes, and the format of responses and errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import embeddings
from audio.decoding import RATE, Audio, Decoder
from bodies import Body, Form, read_form, read_json, spool
from embeddings import Embedder
from errors import ApiError, ClientGone
from speakers import diarization
from speech import transcription
from speech.speech import Speech

# Timeout for a client that neither sends nor reads.
IDLE_SECONDS = 60
CONNECTIONS_MAX = 128
RATES = (8_000, 48_000)
# Maximum length of audio for a call that sets none: unlimited in practice, so that the limit of the server applies.
SECONDS_MAX = "9999999"


@dataclass(frozen=True)
class Services:
    embedder: Embedder
    decoder: Decoder
    speech: Speech
    scratch: str
    upload_bytes_max: int


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Handles each connection in a thread. Beyond CONNECTIONS_MAX, connections wait in the backlog of the socket."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, listening: socket.socket, services: Services) -> None:
        # The constructor of UnixStreamServer would create a socket, which this confined process is not permitted to do.
        socketserver.BaseServer.__init__(self, listening.getsockname(), Handler)
        self.socket = listening
        self.services = services
        self._places = threading.Semaphore(CONNECTIONS_MAX)

    def process_request(self, request: socket.socket, client_address: object) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: socket.socket, client_address: object) -> None:
        """Ignores broken connections, which are normal. The handler has already logged defects."""


class Handler(BaseHTTPRequestHandler):
    """One connection, which may send several requests one after another."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: Server

    def do_GET(self) -> None:
        self._handle({"/health": lambda: self._json(200, {"status": "ok"})})

    def do_POST(self) -> None:
        self._handle(
            {
                "/v1/embeddings": self._embeddings,
                "/v1/audio/transcriptions": self._transcriptions,
                "/audio/decode": self._decode,
                "/audio/probe": self._probe,
                "/diarize": self._diarize,
            }
        )

    def log_message(self, *_: object) -> None:
        """Disabled: the client logs its requests."""

    def _handle(self, routes: dict[str, Callable[[], None]]) -> None:
        self._has_answered = self._is_streaming = False
        self._body: Body | None = None
        try:
            self._body = Body(self.rfile, self.headers, self.server.services.upload_bytes_max)
            route = routes.get(urlsplit(self.path).path)
            if route is None:
                raise ApiError("not_found", "There is no such endpoint.", status=404)
            route()
        except ApiError as error:
            self._fail(error)
        except (ClientGone, ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # the one place that turns a defect into an answer
            # The message could quote user data, so only the code locations are logged.
            print(f"a request failed: {type(error).__name__}", file=sys.stderr)
            traceback.print_tb(error.__traceback__, file=sys.stderr)
            self._fail(ApiError("internal_error", "The local model server failed.", status=500))

    def _embeddings(self) -> None:
        request = read_json(self._body)
        self._json(200, embeddings.answer(request, self.server.services.embedder, self.connection))

    def _transcriptions(self) -> None:
        services = self.server.services
        with self._form() as form:
            job = transcription.read_job(form)
            with contextlib.closing(services.decoder.decode(form.file, self.connection)) as audio:
                if job["stream"]:
                    with contextlib.closing(
                        transcription.events(services.speech, job, audio, self.connection)
                    ) as events:
                        self._stream(events)
                else:
                    self._json(200, transcription.whole(services.speech, job, audio, self.connection))

    def _decode(self) -> None:
        with self._decoded() as audio:
            self._begin(200, "audio/wav")
            self._audio_headers(audio)
            length = os.fstat(audio.samples.fileno()).st_size
            self.send_header("Content-Length", str(44 + length))
            self.end_headers()
            self.wfile.write(_wav_header(length, audio.rate))
            self.connection.sendfile(audio.samples)

    def _probe(self) -> None:
        with self._decoded() as audio:
            self._json(
                200,
                {
                    "duration": audio.duration,
                    "container": audio.container,
                    "codec": audio.codec,
                    "channels": audio.channels,
                    "sample_rate": audio.sample_rate,
                },
            )

    def _diarize(self) -> None:
        services = self.server.services
        with self._form() as form:
            found = diarization.answer(form, services.decoder, services.speech, services.scratch, self.connection)
        self._json(200, found)

    @contextlib.contextmanager
    def _form(self) -> Iterator[Form]:
        form = read_form(self._body, self.headers.get("content-type", ""), self.server.services.scratch)
        with contextlib.closing(form):
            yield form

    @contextlib.contextmanager
    def _decoded(self) -> Iterator[Audio]:
        services = self.server.services
        query = parse_qs(urlsplit(self.path).query)
        (text,) = query.get("rate", [str(RATE)])[:1]
        if not re.fullmatch(r"\d{4,5}", text) or not RATES[0] <= int(text) <= RATES[1]:
            raise ApiError("invalid_value", "rate must be a number from 8000 to 48000.", param="rate")
        (seconds_max,) = query.get("seconds_max", [SECONDS_MAX])[:1]
        if not re.fullmatch(r"[1-9]\d{0,6}", seconds_max):
            raise ApiError("invalid_value", "seconds_max must be a number of seconds.", param="seconds_max")
        with spool(self._body, services.scratch) as file:
            audio = services.decoder.decode(file, self.connection, int(text), int(seconds_max))
        with contextlib.closing(audio):
            yield audio

    def _audio_headers(self, audio: Audio) -> None:
        self.send_header("X-Audio-Duration", f"{audio.duration:.6f}")
        self.send_header("X-Audio-Container", audio.container)
        self.send_header("X-Audio-Codec", audio.codec)
        self.send_header("X-Audio-Channels", str(audio.channels))
        self.send_header("X-Audio-Sample-Rate", str(audio.sample_rate))

    def _begin(self, status: int, content_type: str) -> None:
        self._has_answered = True
        self.send_response(status)
        self.send_header("Content-Type", content_type)

    def _json(self, status: int, value: dict) -> None:
        data = json.dumps(value).encode()
        self._begin(status, "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[dict]) -> None:
        # If the first event fails, then no header was sent yet, so the answer is an ordinary error.
        first = next(events)
        self._is_streaming = True
        self._begin(200, "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._event(first)
        for event in events:
            self._event(event)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _fail(self, error: ApiError) -> None:
        if self._has_answered:
            # The status was already sent. A stream gets an error event and closes without the final chunk.
            self.close_connection = True
            if self._is_streaming:
                with contextlib.suppress(OSError):
                    self._event(error.body())
            return
        try:
            if self._body is not None and not self._body.is_complete:
                self._body.discard(self.server.services.upload_bytes_max)
                self.close_connection = not self._body.is_complete
            self._json(error.status, error.body())
        except (ClientGone, OSError):
            self.close_connection = True


def _wav_header(length: int, rate: int) -> bytes:
    """WAV header for mono 16-bit PCM."""

    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "little")

    fmt = number(1, 2) + number(1, 2) + number(rate, 4) + number(rate * 2, 4) + number(2, 2) + number(16, 2)
    return b"RIFF" + number(36 + length, 4) + b"WAVEfmt " + number(16, 4) + fmt + b"data" + number(length, 4)
