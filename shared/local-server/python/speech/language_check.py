"""
Checks whether speech is in the single language of a monolingual model.

Such a model cannot detect other languages. For them it writes fluent nonsense, but with low probability. On the
recordings of docs/guides/transcription.md, Languages, the average log probability of English windows is -0.52 or
better. For French, Spanish, Italian, Russian and German it is -0.75 or worse, mostly after the temperature was raised.
One sure window therefore proves the model's language, and a few consecutive unsure windows prove another one.

Some Spanish windows are an exception: the model is sure of them and spells them as they sound (-0.63). If a
multilingual model is present, then that model decides about windows below -0.5 with at least four seconds of speech.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# A window with a lower log probability counts as unsure. The first value applies at temperature 0, and the second after the temperature was
# raised.
LOGPROB_MIN, RAISED_LOGPROB_MIN = -0.8, -0.7
# The multilingual model, if present, checks a window with a lower log probability.
DOUBTFUL_LOGPROB_MIN = -0.5
# Number of unsure windows that prove another language. If all windows of a recording are unsure and have this much
# speech together, then fewer windows are enough.
WINDOWS_MAX, SPEECH_SECONDS_MIN = 3, 4.0
# A window with a higher no-speech probability counts as noise. This is Whisper's own default. Synthetic German speech reached 0.55, so a
# lower value would treat speech as noise.
NO_SPEECH_MIN = 0.6


@dataclass(frozen=True)
class Window:
    """Results of the model for a window of 30 seconds, which all segments of the window share."""

    place: tuple[int, int]
    avg_logprob: float
    temperature: float
    no_speech_prob: float

    @property
    def is_unsure(self) -> bool:
        return self.avg_logprob < (RAISED_LOGPROB_MIN if self.temperature > 0 else LOGPROB_MIN)


@dataclass
class LanguageCheck:
    """Checks one recording. `detect` returns the language code of samples; None without a multilingual model."""

    only: str
    detect: Callable[[np.ndarray], str | None]
    # Sample rate of the audio, in samples per second.
    rate: int
    is_sure: bool = False
    # Code of the other language; empty if it is another but unknown language.
    other: str | None = None
    _unsure: list[Window] = field(default_factory=list)
    _seconds: float = 0.0

    @property
    def is_untouched(self) -> bool:
        """True if there was no speech so far."""
        return self._seconds == 0

    def add(self, window: Window, speech: np.ndarray, seconds: float) -> None:
        """Adds a segment and its window. If the model is unsure, then `detect` may check `speech`."""
        if self.is_sure:
            return
        self._seconds += seconds
        if self._unsure and self._unsure[-1].place == window.place:
            return
        language = self._detected(window, speech)
        if language is not None:
            self.is_sure = language == self.only
            self.other = None if self.is_sure else language
        elif not window.is_unsure:
            self.is_sure = True
        else:
            self._unsure.append(window)
            if len(self._unsure) >= WINDOWS_MAX:
                self.finish()

    def _detected(self, window: Window, speech: np.ndarray) -> str | None:
        if window.avg_logprob >= DOUBTFUL_LOGPROB_MIN or len(speech) < SPEECH_SECONDS_MIN * self.rate:
            return None
        return self.detect(speech)

    def finish(self) -> None:
        """Decides after the last window. Noise, or a word or two, does not count as another language."""
        is_speech = any(window.no_speech_prob < NO_SPEECH_MIN for window in self._unsure)
        if self.is_sure or not is_speech or self._seconds < SPEECH_SECONDS_MIN:
            self.is_sure = True
        elif self.other is None:
            self.other = ""
