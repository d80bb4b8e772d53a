"""
Computes the voice of a piece of speech as a unit vector of 256 numbers, with WeSpeaker's ResNet34 (community-1).

Two vectors of one speaker have a cosine similarity of 0.6 for pieces of 2 s, and 0.85 for 8 s. For different speakers,
the similarity is 0.3, and rarely more than 0.5.
"""

from __future__ import annotations

import numpy as np
import onnxruntime

from speech.samples import RATE

FRAMES_A_SECOND = 100
HOP = RATE // FRAMES_A_SECOND
FRAME, FFT, BANDS = 400, 512, 80
LOW_HZ = 20
PREEMPHASIS = np.float32(0.97)
# Minimum frames of a piece. For a shorter piece, no vector is computed.
FRAMES_MIN = 30


class VoiceEncoder:
    """The model in memory. Not thread-safe."""

    def __init__(self, path: str) -> None:
        self._session = open_session(path)

    def embed(self, samples: np.ndarray) -> np.ndarray | None:
        """Unit vector for samples from -1 to 1; None for less than a third of a second."""
        if len(samples) < FRAME + FRAMES_MIN * HOP:
            return None
        bands = filter_banks(samples)
        weights = np.ones((1, len(bands)), np.float32)
        (vector,) = self._session.run(None, {"fbank": (bands - bands.mean(axis=0))[None], "weights": weights})[0]
        return vector / max(1e-6, float(np.linalg.norm(vector)))


def open_session(path: str) -> onnxruntime.InferenceSession:
    """Opens a model that runs only in the calling thread, because the worker processes share the cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def filter_banks(samples: np.ndarray) -> np.ndarray:
    """Log energies of 80 mel bands as in Kaldi, with Hamming windows and without dither. Shape: (frames, BANDS)."""
    frames = np.lib.stride_tricks.sliding_window_view(samples * np.float32(32_768), FRAME)[::HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - PREEMPHASIS * before) * _WINDOW, FFT)
    energies = (np.abs(spectrum) ** 2).astype(np.float32) @ _FILTERS
    return np.log(np.maximum(energies, np.finfo(np.float32).eps))


def _mel_filters() -> np.ndarray:
    """Triangular filters as in Kaldi, evenly spaced in mel, 20 Hz to half the rate. Shape: (FFT // 2 + 1, BANDS)."""
    edges = np.linspace(_mel(LOW_HZ), _mel(RATE / 2), BANDS + 2)
    bins = _mel(np.arange(FFT // 2 + 1) * RATE / FFT)[:, None]
    step = edges[1] - edges[0]
    filters = np.minimum((bins - edges[:-2]) / step, (edges[2:] - bins) / step)
    return np.maximum(0, filters).astype(np.float32)


def _mel(hertz: np.ndarray | float) -> np.ndarray | float:
    return 1127 * np.log(1 + hertz / 700)


_WINDOW = np.hamming(FRAME).astype(np.float32)
_FILTERS = _mel_filters()
