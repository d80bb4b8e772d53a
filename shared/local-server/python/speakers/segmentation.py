"""
Finds speech and changes of speaker with pyannote's segmentation model (community-1).

The model reads a window of ten seconds and marks up to three speakers in it. The next window numbers speakers anew.
Windows advance by five seconds, and only the middle of each is used, because the model lacks context at the edges.
Measured on conversations joined from recordings, the model misses one change of speaker in ten. Long pieces are
therefore cut. The clustering compares the voices of all pieces and finds the missed changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from speakers.voice_encoder import open_session
from speech.samples import RATE, to_float

WINDOW, STEP = 10 * RATE, 5 * RATE
MARGIN = (WINDOW - STEP) // 2
# Position of the model's frames, in samples: distance between two centres, and the first centre.
FRAME_STEP, FRAME_FIRST = 270, 496
PIECE_SECONDS = 2.0


@dataclass(frozen=True)
class Piece:
    """Speech of one speaker, or of several at once. `start` and `end` are sample indexes of the recording."""

    start: int
    end: int
    # According to the segmentation, all pieces of one track are of one speaker.
    track: tuple[int, int]
    is_overlap: bool


class Segmenter:
    """The model in memory. Not thread-safe."""

    def __init__(self, path: str) -> None:
        self._session = open_session(path)

    def pieces(self, samples: np.ndarray) -> Iterator[Piece]:
        """Yields all speech in pieces of at most three seconds, in order and without overlap. `samples`: 16 bits."""
        for number, start in enumerate(range(0, max(1, len(samples) - WINDOW + STEP), STEP)):
            is_last = start + WINDOW >= len(samples)
            first = start + (MARGIN if start else 0)
            last = len(samples) if is_last else start + WINDOW - MARGIN
            for begin, end, speakers in _runs(self._speakers(samples[start : start + WINDOW]), start, first, last):
                yield from _cut(Piece(begin, end, (number, speakers), speakers not in (1, 2, 4)))

    def _speakers(self, samples: np.ndarray) -> np.ndarray:
        """The speakers of each frame, one bit per speaker."""
        window = np.zeros((1, 1, WINDOW), np.float32)
        window[0, 0, : len(samples)] = to_float(samples)
        (active,) = self._session.run(None, {"waveforms": window})[0]
        return (active > 0.5) @ np.array([1, 2, 4])


def _runs(speakers: np.ndarray, start: int, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yields ranges of samples between `first` and `last` with an unchanged set of speakers, without silence."""
    edges = np.flatnonzero(np.diff(speakers, prepend=-1, append=-1))
    for begin, end in zip(edges[:-1], edges[1:]):
        found = max(first, _sample_of(begin, start)), min(last, _sample_of(end, start))
        if end == len(speakers):
            found = found[0], last
        if speakers[begin] and found[0] < found[1]:
            yield *found, int(speakers[begin])


def _sample_of(frame: int, start: int) -> int:
    return start if frame == 0 else start + FRAME_FIRST + int(frame) * FRAME_STEP - FRAME_STEP // 2


def _cut(piece: Piece) -> Iterator[Piece]:
    length = piece.end - piece.start
    count = max(1, round(length / (PIECE_SECONDS * RATE)))
    edges = [piece.start + length * at // count for at in range(count + 1)]
    for begin, end in zip(edges[:-1], edges[1:]):
        yield Piece(begin, end, piece.track, piece.is_overlap)
