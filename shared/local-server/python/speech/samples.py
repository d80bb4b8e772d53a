"""Reads decoded audio in blocks that are cut at silences, so that memory does not grow with the length."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps

RATE = 16_000
BLOCK_SECONDS = 120
# Speech without a pause is cut at a short silence before this length, so that a block holds at least two pieces.
SPEECH_SECONDS_MAX = 50


@dataclass(frozen=True)
class Block:
    """A part of the audio. `speech` lists the ranges with speech, in samples from the start of the block."""

    start: int
    samples: np.ndarray
    speech: list[dict]

    @property
    def end(self) -> int:
        return self.start + len(self.samples)


def open_samples(descriptor: int) -> np.ndarray:
    """Maps the signed 16-bit samples of a file into memory, without reading them. Closes the descriptor."""
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.empty(0, "<i2")
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), "<i2")
    finally:
        os.close(descriptor)


def to_float(samples: np.ndarray) -> np.ndarray:
    """Converts 16-bit samples to numbers from -1 to 1, which all models here expect."""
    return samples.astype(np.float32) / 32_768


def blocks(samples: np.ndarray, options: VadOptions) -> Iterator[Block]:
    """Yields the whole audio in blocks of at most two minutes. A block does not end within speech, if possible."""
    start = 0
    while start < len(samples):
        audio = to_float(samples[start : start + BLOCK_SECONDS * RATE])
        speech = get_speech_timestamps(audio, options)
        end = len(audio)
        # Speech at the end of a block may continue in the next block. The block therefore ends before this speech, unless the speech fills the whole
        # block.
        if start + end < len(samples) and speech and speech[-1]["end"] >= end and speech[-1]["start"] > 0:
            end = speech.pop()["start"]
        yield Block(start, audio[:end], speech)
        start += end


def vad_options(asked: dict | None) -> VadOptions:
    """Options of Silero VAD, which finds speech. `asked`: the `server_vad` chunking strategy of the request, if any."""
    asked = asked or {}
    return VadOptions(
        threshold=asked.get("threshold", 0.5),
        min_silence_duration_ms=asked.get("silence_duration_ms", 2000),
        speech_pad_ms=asked.get("prefix_padding_ms", 400),
        max_speech_duration_s=SPEECH_SECONDS_MAX,
    )
