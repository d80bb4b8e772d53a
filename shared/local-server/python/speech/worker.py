"""
The process that runs speech models: one job at a time, received on the channel at descriptor 0.

A model cannot be interrupted within a window, so the process is killed to stop a job at once. The process therefore has
no state. A job arrives with its files of samples. Each reply is one object; `done` or `error` is the last.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator

import numpy as np

from channel import Channel
from confine import confinement
from speech.samples import open_samples


# An optional model of shared/local-server/weights-manifest.ts, which may be absent.
MULTILINGUAL = "whisper-base"


class Models:

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._transcribers: dict = {}
        self._diarizer = None

    def run(self, job: dict, audio: list[np.ndarray]) -> Iterator[dict]:
        if job["kind"] == "diarize":
            yield {"done": {"turns": self._diarize(job["names"], audio)}}
            return
        yield from self._transcriber(job["model"]).transcribe(audio[0], job, self._detect_language)

    def _transcriber(self, model: str):
        from speech.transcriber import Transcriber

        if model not in self._transcribers:
            self._transcribers[model] = Transcriber(os.path.join(self._directory, model))
        return self._transcribers[model]

    def _detect_language(self, speech: np.ndarray) -> str | None:
        if not os.path.isdir(os.path.join(self._directory, MULTILINGUAL)):
            return None
        return self._transcriber(MULTILINGUAL).detect_language(speech)

    def _diarize(self, names: list[str], audio: list[np.ndarray]) -> list[dict]:
        from speakers.diarizer import Diarizer

        if self._diarizer is None:
            self._diarizer = Diarizer(os.path.join(self._directory, "speakers"))
        known = {name: self._diarizer.voice_of(sample) for name, sample in zip(names, audio[1:], strict=True)}
        return self._diarizer.diarize(audio[0], known)


def main(directory: str, memory_bytes_max: int) -> None:
    confinement.limit_memory(memory_bytes_max)
    channel = Channel(socket.socket(fileno=0))
    jobs: queue.Queue[tuple[dict, list[int]]] = queue.Queue(maxsize=1)
    threading.Thread(target=_listen, args=(channel, jobs), daemon=True).start()
    models = Models(directory)
    while True:
        job, files = jobs.get()
        try:
            audio = [open_samples(file) for file in files]
            for message in models.run(job, audio):
                channel.send(message)
        except MemoryError:
            channel.send({"error": "memory"})
        except BrokenPipeError:
            os._exit(0)
        except Exception as error:  # the caller gets a reply for every exception of a model
            print(f"speech job failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            channel.send({"error": "internal"})


def _listen(channel: Channel, jobs: queue.Queue) -> None:
    """Receives jobs. If the server ends or stops this job, then the channel is closed and the process ends."""
    while (found := channel.receive()) is not None:
        jobs.put(found)
    os._exit(0)
