"""
Finds the turns of speakers. Speech is cut into pieces of about two seconds, and each piece gets a voice vector. Pieces
with similar vectors belong to one speaker.

If two people speak at once, the speech is assigned to one of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from speakers.clustering import Group, Voice, groups_of, tell_apart
from speakers.segmentation import Piece, Segmenter
from speakers.voice_encoder import VoiceEncoder
from speech.samples import RATE, to_float

# Minimum cosine similarity at which a group counts as a known speaker. docs/guides/transcription.md describes the
# measurement.
KNOWN_MIN = 0.7
# Pieces within a block of this length are joined first, and then the groups of all blocks.
BLOCK_SECONDS = 120
# A change of speaker that is shorter than the first value is ignored, because the edges of pieces are uncertain. A pause that is shorter
# than the second value does not end a turn.
TURN_SECONDS_MIN = 0.3
PAUSE_SECONDS_MAX = 0.5


class Diarizer:
    """The models in memory. Not thread-safe."""

    def __init__(self, directory: str) -> None:
        self._segmenter = Segmenter(os.path.join(directory, "segmentation.ort"))
        self._encoder = VoiceEncoder(os.path.join(directory, "voice.ort"))

    def diarize(self, samples: np.ndarray, known: dict[str, np.ndarray]) -> list[dict]:
        """Returns the turns `{"start", "end", "speaker"}` in order. `known`: a vector of `voice_of` for each name."""
        pieces, voices = [], []
        for piece, voice in self._voices(samples):
            pieces.append(piece)
            voices.append(voice)
        groups = _block_groups(pieces, voices, known)
        if not groups:
            return []
        labels, speakers = tell_apart(groups, voices, partial(_known_name, known=known))
        return _name(_turns(pieces, labels), [_known_name(speaker.mean, known) for speaker in speakers])

    def voice_of(self, samples: np.ndarray) -> np.ndarray:
        """The voice in a sample of one speaker: the mean over its speech, as a unit vector; zeros without voice."""
        voices = [voice for _, voice in self._voices(samples) if voice.vector is not None]
        if not voices:
            whole = self._encoder.embed(to_float(samples))
            return np.zeros(1, np.float32) if whole is None else whole
        return Group(sum(voice.vector * voice.seconds for voice in voices), 1.0).mean

    def _voices(self, samples: np.ndarray) -> Iterator[tuple[Piece, Voice]]:
        for piece in self._segmenter.pieces(samples):
            vector = self._encoder.embed(to_float(samples[piece.start : piece.end]))
            yield piece, Voice((piece.end - piece.start) / RATE, piece.track, vector, piece.is_overlap)


def _block_groups(
    pieces: Sequence[Piece], voices: Sequence[Voice], known: dict[str, np.ndarray]
) -> list[Group]:
    blocks: dict[int, list[Voice]] = {}
    for piece, voice in zip(pieces, voices):
        blocks.setdefault(piece.start // (BLOCK_SECONDS * RATE), []).append(voice)
    return [group for block in blocks.values() for group in groups_of(block, partial(_known_name, known=known))]


def _turns(pieces: Sequence[Piece], labels: np.ndarray) -> list[list]:
    turns: list[list] = []
    for piece, label in zip(pieces, labels):
        _append(turns, piece.start / RATE, piece.end / RATE, int(label))
    return _absorb(turns)


def _append(turns: list[list], start: float, end: float, label: int) -> None:
    if turns and turns[-1][2] == label and start - turns[-1][1] <= PAUSE_SECONDS_MAX:
        turns[-1][1] = end
    else:
        turns.append([start, end, label])


def _absorb(turns: list[list]) -> list[list]:
    """Joins a turn that is too short with the turn before it, if the pause between them is short."""
    kept: list[list] = []
    for start, end, label in turns:
        is_short = end - start < TURN_SECONDS_MIN and kept and start - kept[-1][1] <= PAUSE_SECONDS_MAX
        _append(kept, start, end, kept[-1][2] if is_short else label)
    return kept


def _known_name(voice: np.ndarray, known: dict[str, np.ndarray]) -> str | None:
    scores = {name: float(np.sum(voice * reference)) for name, reference in known.items()}
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= KNOWN_MIN else None


def _name(turns: list[list], names: list[str | None]) -> list[dict]:
    """Names known speakers, and gives letters to the others in order of appearance."""
    letters: dict[int, str] = {}
    named = []
    for start, end, label in turns:
        speaker = names[label] or letters.setdefault(label, _letter(len(letters)))
        if named and named[-1]["speaker"] == speaker and start - named[-1]["end"] <= PAUSE_SECONDS_MAX:
            named[-1]["end"] = round(end, 2)
        else:
            named.append({"start": round(start, 2), "end": round(end, 2), "speaker": speaker})
    return named


def _letter(index: int) -> str:
    """A … Z, AA, AB …"""
    return (_letter(index // 26 - 1) if index >= 26 else "") + chr(ord("A") + index % 26)
