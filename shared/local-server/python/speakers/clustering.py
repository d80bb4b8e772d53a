"""
Which windows of speech are one speaker's, by the vectors of their voices. Nobody says how many speakers there are.

A window across a change of speaker holds two voices and lies between both, so windows that are simply joined when they
are close chain two speakers together. Therefore windows are joined carefully at first, and every window goes to
the group it is most like, which shows where speakers change. Then groups are joined once more, by their other windows
alone. Measured on recorded and synthetic voices, of which docs/benchmarks.md has some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# Average cosine distance up to which groups are one speaker: with the windows at changes, and without them.
MIXED_DISTANCE_MAX, DISTANCE_MAX = 0.35, 0.38
# A speaker says so many windows in a row at least once (2.8 s); a change of speaker fills fewer.
ROW_MIN = 4
# By so much similarity a window must be more like another speaker than like that of the window before.
CHANGE_COST = 0.1
# So many windows on each side of a change hold a good part of both voices.
EDGE_WINDOWS = 2


@dataclass
class Group:
    """Windows taken for one speaker: their sum says all that average linkage needs of them."""

    total: np.ndarray
    windows: list[int]

    @property
    def mean(self) -> np.ndarray:
        """Of length 1."""
        return self.total / max(1e-6, float(np.linalg.norm(self.total)))


def merge_block(vectors: np.ndarray, first: int) -> list[Group]:
    """The carefully joined windows of a block, of which the first has the number `first`: fewer to join later."""
    return merge([Group(vector, [first + at]) for at, vector in enumerate(vectors)], MIXED_DISTANCE_MAX)


def tell_apart(
    groups: list[Group], vectors: np.ndarray, name_of: Callable[[np.ndarray], str | None] = lambda _: None
) -> np.ndarray:
    """
    The speaker of each window, 0, 1, … in no order.

    groups: all windows, by `merge_block`. name_of: who a voice is, if that is known; people of different names stay
    apart, however alike they are.
    """
    groups = _speaking(merge(groups, MIXED_DISTANCE_MAX))
    groups = _unmixed(_assign(vectors, groups), vectors)
    groups = merge(groups, DISTANCE_MAX, [name_of(group.mean) for group in groups])
    return np.unique(_assign(vectors, groups), return_inverse=True)[1]


def merge(groups: list[Group], distance_max: float, names: Sequence[str | None] = ()) -> list[Group]:
    """
    Joins the two closest groups until none are closer than `distance_max`; never groups of different names.

    The distance is average linkage on cosine distance: for unit vectors it is 1 - sum·sum / (count × count), so
    groups of groups are joined exactly as if all their windows were compared.
    """
    groups = list(groups)
    if len(groups) < 2:
        return groups
    sums = np.stack([group.total for group in groups]).astype(np.float64)
    counts = np.array([len(group.windows) for group in groups], np.float64)
    distance = 1 - sums @ sums.T / np.outer(counts, counts)
    np.fill_diagonal(distance, np.inf)
    names = list(names) or [None] * len(groups)
    for at, name in enumerate(names):
        distance[at, _strangers(name, names)] = np.inf
    alive = [True] * len(groups)
    while True:
        left, right = np.unravel_index(np.argmin(distance), distance.shape)
        if distance[left, right] > distance_max:
            return [group for group, lives in zip(groups, alive) if lives]
        groups[left] = Group(groups[left].total + groups[right].total, groups[left].windows + groups[right].windows)
        names[left] = names[left] or names[right]
        alive[right] = False
        sums[left] += sums[right]
        counts[left] += counts[right]
        row = 1 - sums @ sums[left] / (counts * counts[left])
        row[[index for index, lives in enumerate(alive) if not lives] + [left]] = np.inf
        row[_strangers(names[left], names)] = np.inf
        distance[left], distance[:, left] = row, row
        distance[right], distance[:, right] = np.inf, np.inf


def _strangers(name: str | None, names: list[str | None]) -> list[int]:
    return [at for at, other in enumerate(names) if other and other != name] if name else []


def _speaking(groups: list[Group]) -> list[Group]:
    """The groups that are speakers, not changes of speaker; all of them where none speaks long enough to be sure."""
    return [group for group in groups if _longest_row(group.windows) >= ROW_MIN] or groups


def _longest_row(windows: list[int]) -> int:
    # Numbers that follow each other have one distance to their place in the sorted list.
    offsets = np.sort(windows) - np.arange(len(windows))
    return int(np.unique(offsets, return_counts=True)[1].max())


def _assign(vectors: np.ndarray, groups: list[Group]) -> np.ndarray:
    """The number of a group for each window: the one it is most like, without changes that are not worth it."""
    return _best_path(vectors @ np.stack([group.mean for group in groups]).T)


def _best_path(likeness: np.ndarray) -> np.ndarray:
    """Viterbi: the path through (windows, groups) with the greatest sum, of which every change costs CHANGE_COST."""
    count, groups = likeness.shape
    came_from = np.empty((count, groups), np.int32)
    best = np.zeros(groups)
    for at in range(count):
        leader = int(np.argmax(best))
        stays = best >= best[leader] - CHANGE_COST
        came_from[at] = np.where(stays, np.arange(groups), leader)
        best = np.where(stays, best, best[leader] - CHANGE_COST) + likeness[at]
    labels = np.empty(count, np.int64)
    label = int(np.argmax(best))
    for at in range(count - 1, -1, -1):
        labels[at] = label
        label = came_from[at, label]
    return labels


def _unmixed(labels: np.ndarray, vectors: np.ndarray) -> list[Group]:
    """Groups of the windows away from changes; of all its windows, where a group has no others."""
    inside = np.ones(len(labels), bool)
    for step in range(1, EDGE_WINDOWS + 1):
        same = labels[step:] == labels[:-step]
        inside[step:] &= same
        inside[:-step] &= same
    groups = []
    for label in np.unique(labels):
        own = labels == label
        windows = np.flatnonzero(own & inside if np.any(own & inside) else own)
        groups.append(Group(vectors[windows].sum(axis=0), windows.tolist()))
    return groups
