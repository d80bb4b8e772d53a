"""The GE2E speaker encoder (Resemblyzer's weights) in numpy: what a voice sounds like, as 256 numbers."""

from __future__ import annotations

import numpy as np

RATE = 16_000
FFT, HOP, BANDS = 400, 160, 40
FRAMES_A_SECOND = RATE // HOP
# The model was trained on windows of 1.6 s.
WINDOW = 160
UNITS, LAYERS = 256, 3
# Quieter recordings are raised to this level, louder ones stay, as in training.
LEVEL_DBFS = -30
BATCH = 128


class VoiceEncoder:
    """The network. Needs 6 MB, and 0.02 s of one core for each second of audio."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as weights:
            get = {name: weights[name].astype(np.float32) for name in weights.files}
        self._layers = [
            (
                np.ascontiguousarray(get[f"lstm.weight_ih_l{n}"].T),
                np.ascontiguousarray(get[f"lstm.weight_hh_l{n}"].T),
                get[f"lstm.bias_ih_l{n}"] + get[f"lstm.bias_hh_l{n}"],
            )
            for n in range(LAYERS)
        ]
        self._linear = get["linear.weight"].T, get["linear.bias"]

    def embed(self, windows: np.ndarray) -> np.ndarray:
        """Unit vectors for windows of mel frames of one length: (count, frames, BANDS) → (count, UNITS)."""
        found = [self._embed(windows[at : at + BATCH]) for at in range(0, len(windows), BATCH)]
        return np.concatenate(found) if found else np.empty((0, UNITS), np.float32)

    def _embed(self, windows: np.ndarray) -> np.ndarray:
        states = windows
        for weights in self._layers:
            states = _lstm(states, *weights)
        weight, bias = self._linear
        raw = np.maximum(0, states[:, -1] @ weight + bias)
        return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-6)


def _lstm(inputs: np.ndarray, w_in: np.ndarray, w_state: np.ndarray, bias: np.ndarray) -> np.ndarray:
    projected = inputs @ w_in + bias
    count, frames, _ = inputs.shape
    state, cell = np.zeros((count, UNITS), np.float32), np.zeros((count, UNITS), np.float32)
    states = np.empty((count, frames, UNITS), np.float32)
    for frame in range(frames):
        gates = projected[:, frame] + state @ w_state
        # Torch's order: input, forget, cell, output.
        gate_in, gate_forget, gate_out = (_sigmoid(gates[:, n * UNITS : (n + 1) * UNITS]) for n in (0, 1, 3))
        cell = gate_forget * cell + gate_in * np.tanh(gates[:, 2 * UNITS : 3 * UNITS])
        state = gate_out * np.tanh(cell)
        states[:, frame] = state
    return states


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # By tanh, which cannot overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def mel_frames(samples: np.ndarray, gain: float) -> np.ndarray:
    """Power in 40 mel bands, a hundred frames a second, each centred on its time: (frames, BANDS)."""
    padded = np.pad(samples * np.float32(gain), FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT)[::HOP]
    window = np.hanning(FFT + 1)[:-1].astype(np.float32)
    power = np.empty((len(frames), BANDS), np.float32)
    # In pieces: the spectrum of a long block at once is tens of megabytes.
    for at in range(0, len(frames), 4096):
        spectrum = np.abs(np.fft.rfft(frames[at : at + 4096] * window, axis=1)) ** 2
        power[at : at + 4096] = spectrum @ _FILTERS
    return power


def gain_for(samples: np.ndarray) -> float:
    """What 16-bit samples are multiplied with, after scaling to ±1, to be as loud as the model expects."""
    total = 0.0
    for at in range(0, len(samples), RATE * 60):
        piece = samples[at : at + RATE * 60].astype(np.float64) / 32_768
        total += float(piece @ piece)
    level = np.sqrt(total / max(1, len(samples)))
    return max(1.0, 10 ** (LEVEL_DBFS / 20) / level) if level > 0 else 1.0


def _mel_filters() -> np.ndarray:
    """Slaney's triangles, as librosa makes them: (FFT // 2 + 1, BANDS)."""
    step, knee = 200 / 3, 1000 / (200 / 3)
    top = knee + np.log(RATE / 2 / 1000) / (np.log(6.4) / 27)
    mels = np.linspace(0, top, BANDS + 2)
    edges = np.where(mels < knee, mels * step, 1000 * np.exp((mels - knee) * np.log(6.4) / 27))
    bins = np.arange(FFT // 2 + 1) * RATE / FFT
    rising = (bins[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins[:, None]) / (edges[2:] - edges[1:-1])
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2])).astype(np.float32)


_FILTERS = _mel_filters()
