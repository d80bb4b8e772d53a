"""
Who spoke when: the voice of every 1.6 s of speech as a vector, and vectors that lie close are one speaker.

Speech of two people at once is given to one of them.
"""

from __future__ import annotations

import numpy as np
from faster_whisper.vad import VadOptions

from speakers.clustering import Group, merge_block, tell_apart
from speakers.voice_encoder import BANDS, FRAMES_A_SECOND, HOP, WINDOW, VoiceEncoder, gain_for, mel_frames
from speech.samples import RATE, SPEECH_SECONDS_MAX, Block, blocks

STEP = 40
# A window counts when this many of its 160 frames are speech.
SPEECH_FRAMES_MIN = 60
# Cosine similarity from which a group is a known speaker.
KNOWN_MIN = 0.75
# Shorter changes of speaker are the uncertainty of the windows' edges; shorter pauses do not end a turn.
TURN_SECONDS_MIN = 0.3
PAUSE_SECONDS_MAX = 0.5
VAD = VadOptions(min_silence_duration_ms=300, speech_pad_ms=60, max_speech_duration_s=SPEECH_SECONDS_MAX)


def diarize(samples: np.ndarray, known: dict[str, np.ndarray], encoder: VoiceEncoder) -> list[dict]:
    """Turns in order, `{"start", "end", "speaker"}`. known: a vector of `voice_of` for each name."""
    gain = gain_for(samples)
    groups: list[Group] = []
    centres: list[float] = []
    vectors: list[np.ndarray] = []
    speech: list[tuple[float, float]] = []
    for block in blocks(samples, VAD):
        offset = block.start / RATE
        starts, found = _block_vectors(block, gain, encoder)
        groups += merge_block(found, len(centres))
        vectors.append(found)
        centres += [offset + (start + WINDOW / 2) / FRAMES_A_SECOND for start in starts]
        speech += [(offset + part["start"] / RATE, offset + part["end"] / RATE) for part in block.speech]
    if not groups:
        return []
    voices = np.concatenate(vectors)
    labels = tell_apart(groups, voices, lambda voice: _known_name(voice, known))
    names = [_known_name(_mean(voices[labels == label]), known) for label in range(labels.max() + 1)]
    return _name(_turns(speech, np.array(centres), labels), names)


def voice_of(samples: np.ndarray, encoder: VoiceEncoder) -> np.ndarray:
    """The voice of a sample of one speaker: the mean over its windows, of length 1."""
    audio = samples.astype(np.float32) / 32_768
    frames = mel_frames(audio, gain_for(samples))
    return _mean(encoder.embed(_cut(frames, range(0, max(1, len(frames) - WINDOW + 1), STEP))))


def _mean(vectors: np.ndarray) -> np.ndarray:
    total = vectors.sum(axis=0)
    return total / max(1e-6, float(np.linalg.norm(total)))


def _block_vectors(block: Block, gain: float, encoder: VoiceEncoder) -> tuple[list[int], np.ndarray]:
    frames = mel_frames(block.samples, gain)
    is_speech = np.zeros(len(frames), bool)
    for part in block.speech:
        is_speech[part["start"] // HOP : part["end"] // HOP + 1] = True
    counted = np.concatenate([[0], np.cumsum(is_speech)])
    last = max(1, len(frames) - WINDOW + 1)
    least = min(SPEECH_FRAMES_MIN, len(frames) // 2)
    starts = [at for at in range(0, last, STEP) if counted[min(at + WINDOW, len(frames))] - counted[at] >= least]
    if not any(is_speech):
        starts = []
    return starts, encoder.embed(_cut(frames, starts))


def _cut(frames: np.ndarray, starts: list[int] | range) -> np.ndarray:
    width = min(WINDOW, len(frames))
    return np.stack([frames[at : at + width] for at in starts]) if len(starts) else np.empty((0, width, BANDS))


def _turns(speech: list[tuple[float, float]], centres: np.ndarray, labels: np.ndarray) -> list[list]:
    """[start, end, label] of one speaker each: every moment of speech belongs to the window whose centre is nearest."""
    turns: list[list] = []
    edges = (centres[1:] + centres[:-1]) / 2
    for start, end in speech:
        at = int(np.searchsorted(edges, start))
        while start < end:
            until = min(end, float(edges[at])) if at < len(edges) else end
            if until > start:
                _append(turns, start, until, int(labels[at]))
            start, at = until, at + 1
    return _absorb(turns)


def _append(turns: list[list], start: float, end: float, label: int) -> None:
    if turns and turns[-1][2] == label and start - turns[-1][1] <= PAUSE_SECONDS_MAX:
        turns[-1][1] = end
    else:
        turns.append([start, end, label])


def _absorb(turns: list[list]) -> list[list]:
    """Gives changes that are too short to be turns to the turn before them, when it is near."""
    kept: list[list] = []
    for start, end, label in turns:
        is_short = end - start < TURN_SECONDS_MIN and kept and start - kept[-1][1] <= PAUSE_SECONDS_MAX
        _append(kept, start, end, kept[-1][2] if is_short else label)
    return kept


def _known_name(voice: np.ndarray, known: dict[str, np.ndarray]) -> str | None:
    scores = {name: float(voice @ reference) for name, reference in known.items()}
    best = max(scores, key=scores.__getitem__, default=None)
    return best if best is not None and scores[best] >= KNOWN_MIN else None


def _name(turns: list[list], names: list[str | None]) -> list[dict]:
    """Known names, and letters for the others in order of appearance."""
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
