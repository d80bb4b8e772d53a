"""
Mixes channels to mono and converts samples to 16 bits without losing the voice.

The mean of two channels of opposite phase is silence, so a channel in opposite phase to the loudest
one is inverted first.
Floating-point samples above full scale are scaled down. Samples that are NaN are interpolated.
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np

# Channels are compared and written in blocks of this many samples, which is half a second of speech.
BLOCK = 8_000
# Each block multiplies the sums over earlier blocks by this factor, so they halve in about five seconds.
MEMORY = 0.93
# Bounds of the correlation with the loudest channel. Below the first value, a channel is inverted. Above the second
# value, a channel is not inverted. In between, the last decision stays.
AGAINST, ALONG = -0.2, 0.2
# If a mix has less than this fraction of the loudest channel's energy, then the channels have cancelled each other. The loudest channel is
# then used alone.
LOST = 0.05
# For samples in floating point: if less than this fraction of a block is within full scale, then the file is scaled down. The level that
# this fraction of the block does not exceed then becomes half of full scale (HEADROOM).
LOUD = 0.95
HEADROOM = 2.0
# Minimum ratio of the energy of second differences to that of the samples, at 16 kHz, for a channel with voice. Sounds below about 180 Hz
# have a lower ratio and count as rumble.
RUMBLE = 2e-5
# Larger samples count as invalid. The limit is high, because some writers use the scale of 32-bit integers.
NUMBER_MAX = 1e10
# Size of the blocks in which a file is read, scaled down and written again.
AGAIN_BYTES = 1 << 20


class Mixer:
    """Mixes the channels of one stream. A block is a float array of shape (channels, samples)."""

    def __init__(self, count: int) -> None:
        self._products = np.zeros((count, count))
        self._energies = np.zeros(count)
        self._signs = np.ones(count)
        self._offsets: np.ndarray | None = None

    def mix(self, block: np.ndarray) -> np.ndarray:
        """Mixes a block to one channel, about as loud as the loudest channel and without a constant offset."""
        channels = block.astype(np.float64)
        means = channels.mean(axis=1, keepdims=True)
        self._offsets = means if self._offsets is None else MEMORY * self._offsets + (1 - MEMORY) * means
        channels -= self._offsets
        if len(channels) == 1:
            return channels[0]
        # Second differences contain almost no hum, which would otherwise outweigh the voice.
        voice = np.diff(channels, n=2)
        self._products = MEMORY * self._products + voice @ voice.T
        self._energies = MEMORY * self._energies + (channels * channels).sum(axis=1)
        energies = np.diag(self._products) * self._is_voice()
        loudest = int(energies.argmax())
        if energies[loudest] == 0:
            return channels[int(self._energies.argmax())]
        correlations = self._products[loudest] / np.sqrt(np.maximum(energies * energies[loudest], 1e-30))
        self._signs[correlations < AGAINST] = -1
        self._signs[correlations > ALONG] = 1
        # The weights keep the mix as loud as the channels with speech: if only one of six channels has speech, then the
        # mix equals that channel.
        weights = self._signs * (energies > 0) / (energies.sum() / energies[loudest])
        mixed = weights @ voice
        if mixed @ mixed < LOST * (voice[loudest] @ voice[loudest]):
            return channels[loudest]
        return weights @ channels

    def _is_voice(self) -> np.ndarray:
        """False for channels that contain only rumble, such as that of a subwoofer. If all do, then all are True."""
        is_voice = np.diag(self._products) > RUMBLE * self._energies
        return is_voice if is_voice.any() else ~is_voice


class NotNumbers:
    """Replaces samples that are NaN or far too large by interpolating between their neighbours."""

    def __init__(self) -> None:
        self.samples = 0
        self.replaced = 0

    def replace(self, samples: np.ndarray) -> np.ndarray:
        """Argument and result have the shape (channels, samples)."""
        self.samples += samples.shape[1]
        sizes = np.abs(samples)
        if sizes.max(initial=0) < NUMBER_MAX:
            return samples
        bad = ~(sizes < NUMBER_MAX)
        self.replaced += int(bad.all(axis=0).sum())
        places = np.arange(samples.shape[1])
        return np.stack([_filled(channel, holes, places) for channel, holes in zip(samples, bad, strict=True)])


def _filled(channel: np.ndarray, holes: np.ndarray, places: np.ndarray) -> np.ndarray:
    if not holes.any():
        return channel
    if holes.all():
        return np.zeros_like(channel)
    filled = channel.copy()
    filled[holes] = np.interp(places[holes], places[~holes], channel[~holes])
    return filled


class Writer:
    """Writes samples as signed 16-bit numbers. If samples exceed full scale, the file is scaled down."""

    def __init__(self, target: BinaryIO | None) -> None:
        self._target = target
        self._scale = 1.0
        self.samples = 0

    def write(self, block: np.ndarray, may_be_over: bool) -> None:
        """Appends a block. `may_be_over` is True for samples in floating point, which may be above full scale."""
        self.samples += len(block)
        if self._target is None or len(block) == 0:
            return
        if may_be_over:
            self._fit(block)
        self._target.write(_to_16_bits(block / self._scale).tobytes())

    def _fit(self, block: np.ndarray) -> None:
        level = float(np.quantile(np.abs(block), LOUD))
        if level <= self._scale:
            return
        # The scale grows by at least 4 each time. Otherwise a file that becomes louder and louder would be rewritten
        # for each block.
        scale = max(level * HEADROOM, self._scale * 4)
        self._target.flush()
        descriptor, factor = self._target.fileno(), self._scale / scale
        for at in range(0, os.fstat(descriptor).st_size, AGAIN_BYTES):
            known = np.frombuffer(os.pread(descriptor, AGAIN_BYTES, at), "<i2")
            os.pwrite(descriptor, np.rint(known * factor).astype("<i2").tobytes(), at)
        self._scale = scale


def _to_16_bits(block: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(block * 32_768, -32_768, 32_767)).astype("<i2")
