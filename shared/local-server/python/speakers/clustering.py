"""
Groups pieces of speech by speaker, using their voice vectors. The number of speakers is unknown.

1. The closest groups of pieces are joined until the average similarity of the two closest is too low.
2. Every piece, including short ones, is assigned to the group with the most similar voice. Within one track of the
   segmentation, a change of group has a cost, so that a single differing piece stays with its neighbours.

The thresholds were chosen on recordings that are not in the tests (docs/guides/transcription.md, Who speaks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

# Maximum average cosine distance at which two groups of speech pieces are joined: first within two minutes of audio, and then within the
# whole recording.
BLOCK_DISTANCE_MAX, DISTANCE_MAX = 0.45, 0.55
# Maximum groups of which every pair is compared, because the time grows with the third power of their number.
GROUPS_MAX = 800
# Minimum seconds of a piece that may begin a group. The voice of a shorter piece is too uncertain.
SURE_SECONDS = 0.9
# A group with less speech than the first value counts as a speaker only if its similarity to every other speaker is
# below the second value.
SPEAKER_SECONDS, UNLIKE_MAX = 3.0, 0.3
# Cost of a change of speaker between two consecutive pieces of one track, in units of similarity times seconds. The segmentation assigns
# all pieces of a track to one speaker.
CHANGE_COST = 0.3
# When a piece is assigned to a group, the voices of the other pieces in its track also count. Together they count as at most this many
# seconds.
TRACK_SECONDS = 1.0


@dataclass
class Voice:
    """A piece of speech and its voice. `vector` has the length 1; None if the piece is too short."""

    seconds: float
    track: tuple[int, int]
    vector: np.ndarray | None
    # True if several speakers speak at once. Such a piece begins no group, because its voice is a mixture.
    is_overlap: bool = False


@dataclass
class Group:
    """Pieces of one speaker. Average linkage needs only `total`, the sum of their vectors times their seconds."""

    total: np.ndarray
    seconds: float
    name: str | None = field(default=None)

    @property
    def mean(self) -> np.ndarray:
        return self.total / max(1e-6, float(np.linalg.norm(self.total)))


NameOf = Callable[[np.ndarray], "str | None"]


def groups_of(voices: Sequence[Voice], name_of: NameOf = lambda _: None) -> list[Group]:
    """Joins the pieces of a few minutes, so that a long recording has few groups. `name_of`: as for `tell_apart`."""
    heard = [voice for voice in voices if voice.vector is not None]
    sure = [voice for voice in heard if voice.seconds >= SURE_SECONDS and not voice.is_overlap] or heard
    return merge(
        [Group(voice.vector * voice.seconds, voice.seconds, name_of(voice.vector)) for voice in sure],
        BLOCK_DISTANCE_MAX,
    )


def tell_apart(
    groups: Sequence[Group], voices: Sequence[Voice], name_of: NameOf = lambda _: None
) -> tuple[np.ndarray, list[Group]]:
    """
    Returns the index of each piece's group, and the groups.

    `groups`: results of `groups_of` for all pieces, at least one. `name_of` returns the known speaker with a voice.
    Groups of different names are never joined, even if their voices are similar.
    """
    named = [Group(group.total, group.seconds, name_of(group.mean)) for group in _few(groups)]
    speakers = _speakers(merge(named, DISTANCE_MAX))
    return _assign(voices, speakers), speakers


def _few(groups: Sequence[Group]) -> list[Group]:
    """If there are too many groups, joins neighbours in time first, then drops the groups with the least speech."""
    if len(groups) <= GROUPS_MAX:
        return list(groups)
    half = GROUPS_MAX // 2
    fewer = [one for at in range(0, len(groups), half) for one in merge(groups[at : at + half], DISTANCE_MAX)]
    return sorted(fewer, key=lambda group: -group.seconds)[:GROUPS_MAX]


def _speakers(groups: Sequence[Group]) -> list[Group]:
    """The groups that count as speakers. Short groups are probably pieces of other speakers."""
    speakers: list[Group] = []
    for group in sorted(groups, key=lambda group: -group.seconds):
        unlike = all(float(group.mean @ speaker.mean) < UNLIKE_MAX for speaker in speakers)
        if group.seconds >= SPEAKER_SECONDS or group.name or unlike:
            speakers.append(group)
    return speakers


def merge(groups: Sequence[Group], distance_max: float) -> list[Group]:
    """
    Joins the two closest groups until no two are closer than `distance_max`. Groups of different names are not joined.

    The distance is average linkage on cosine distance, which for unit vectors is 1 - sum·sum / (seconds × seconds).
    Joining joined groups is therefore exact, as if all their pieces were compared.
    """
    groups = list(groups)
    if len(groups) < 2:
        return groups
    sums = np.stack([group.total for group in groups]).astype(np.float64)
    seconds = np.array([group.seconds for group in groups])
    names = [group.name for group in groups]
    distance = 1 - sums @ sums.T / np.outer(seconds, seconds)
    for at, name in enumerate(names):
        distance[at, [at, *_strangers(name, names)]] = np.inf
    alive = np.ones(len(groups), bool)
    while True:
        left, right = np.unravel_index(np.argmin(distance), distance.shape)
        if distance[left, right] > distance_max:
            return [group for group, lives in zip(groups, alive) if lives]
        names[left] = names[left] or names[right]
        alive[right] = False
        sums[left] += sums[right]
        seconds[left] += seconds[right]
        groups[left] = Group(sums[left], float(seconds[left]), names[left])
        row = 1 - sums @ sums[left] / (seconds * seconds[left])
        row[~alive] = row[left] = np.inf
        row[_strangers(names[left], names)] = np.inf
        distance[left], distance[:, left] = row, row
        distance[right], distance[:, right] = np.inf, np.inf


def _strangers(name: str | None, names: Sequence[str | None]) -> list[int]:
    return [at for at, other in enumerate(names) if other and other != name] if name else []


def _assign(voices: Sequence[Voice], groups: Sequence[Group]) -> np.ndarray:
    """Assigns each piece to a group, so that the sum of similarity times seconds, minus costs, is greatest."""
    means = np.stack([group.mean for group in groups])
    likeness = _vectors(voices, means.shape[1]) @ means.T
    prices = [CHANGE_COST if before.track == voice.track else 0.0 for before, voice in zip(voices, voices[1:])]
    return _best_path(likeness, [0.0, *prices])


def _vectors(voices: Sequence[Voice], width: int) -> np.ndarray:
    """For each piece, its vector times its seconds, plus the weighted voice of the rest of its track."""
    own = np.zeros((len(voices), width))
    tracks: dict[tuple[int, int], np.ndarray] = {}
    for at, voice in enumerate(voices):
        if voice.vector is not None:
            own[at] = voice.vector * voice.seconds
        tracks[voice.track] = tracks.get(voice.track, 0) + own[at]
    rest = np.stack([tracks[voice.track] for voice in voices]) - own
    length = np.maximum(1e-6, np.linalg.norm(rest, axis=1, keepdims=True))
    seconds = np.minimum(TRACK_SECONDS, [[voice.seconds] for voice in voices])
    return own + rest / length * np.minimum(length, TRACK_SECONDS) * seconds


def _best_path(likeness: np.ndarray, prices: Sequence[float]) -> np.ndarray:
    """Viterbi algorithm over (pieces, groups). A change of group before a piece costs the price of that piece."""
    count, groups = likeness.shape
    came_from = np.empty((count, groups), np.int32)
    best = np.zeros(groups)
    for at, price in enumerate(prices):
        leader = int(np.argmax(best))
        stays = best >= best[leader] - price
        came_from[at] = np.where(stays, np.arange(groups), leader)
        best = np.where(stays, best, best[leader] - price) + likeness[at]
    labels = np.empty(count, np.int64)
    label = int(np.argmax(best))
    for at in range(count - 1, -1, -1):
        labels[at] = label
        label = came_from[at, label]
    return labels
