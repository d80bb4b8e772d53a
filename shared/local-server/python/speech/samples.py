"""Decoded audio as the models want it: read in blocks, cut at silences. Memory does not grow with the length."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps

RATE = 16_000
BLOCK_SECONDS = 120
# Speech without a pause is cut at its shortest silence before this, so that a block holds at least two pieces.
SPEECH_SECONDS_MAX = 50


@dataclass(frozen=True)
class Block:
    """A stretch of audio, and where in it somebody speaks; `speech` counts samples from the block's start."""

    start: int
    samples: np.ndarray
    speech: list[dict]

    @property
    def end(self) -> int:
        return self.start + len(self.samples)


def open_samples(descriptor: int) -> np.ndarray:
    """The signed 16-bit samples of a file, mapped, not read. Closes the descriptor."""
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, "<i2")
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), "<i2")
    finally:
        os.close(descriptor)


def to_float(samples: np.ndarray) -> np.ndarray:
    """From 16-bit to ±1, as all models here take it."""
    return samples.astype(np.float32) / 32_768


def blocks(samples: np.ndarray, options: VadOptions) -> Iterator[Block]:
    """The whole audio in blocks of at most two minutes, none of which ends while somebody speaks."""
    start = 0
    while start < len(samples):
        audio = to_float(samples[start : start + BLOCK_SECONDS * RATE])
        speech = get_speech_timestamps(audio, options)
        end = len(audio)
        # Speech up to the end may go on: it is the next block's, unless it fills this one.
        if start + end < len(samples) and speech and speech[-1]["end"] >= end and speech[-1]["start"] > 0:
            end = speech.pop()["start"]
        yield Block(start, audio[:end], speech)
        start += end


def vad_options(asked: dict | None) -> VadOptions:
    """How speech is found: by Silero VAD, with the wishes of a `server_vad` chunking strategy where there are any."""
    asked = asked or {}
    return VadOptions(
        threshold=asked.get("threshold", 0.5),
        min_silence_duration_ms=asked.get("silence_duration_ms", 2000),
        speech_pad_ms=asked.get("prefix_padding_ms", 400),
        max_speech_duration_s=SPEECH_SECONDS_MAX,
    )
