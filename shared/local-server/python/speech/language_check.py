"""
Checks whether speech is in the single language of a monolingual model.

Such a model cannot detect other languages: it writes fluent nonsense, but with low probability. On recordings of
packages (docs/guides/transcription.md, Languages) the average log probability of English windows is -0.52 or better. For
French, Spanish, Italian, Russian and German it is -0.75 or worse, mostly after the temperature was raised. One sure
window proves the model's language; a few consecutive unsure windows prove another. Some Spanish windows are an
exception: the model is sure of them and spells them as they sound (-0.63). If a multilingual model is present, it
therefore decides below -0.5, given four seconds of speech.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# A window with less is unsure: at temperature 0, and after the temperature was raised.
LOGPROB_MIN, RAISED_LOGPROB_MIN = -0.8, -0.7
# A window with less is given to the model of many languages, if there is one.
DOUBTFUL_LOGPROB_MIN = -0.5
# So many unsure windows are enough, or all of a recording with so much speech.
WINDOWS_MAX, SPEECH_SECONDS_MIN = 3, 4.0
# A window from here on is noise: the default of Whisper itself. Synthetic German had 0.55.
NO_SPEECH_MIN = 0.6


@dataclass(frozen=True)
class Window:
    """What the model found of 30 seconds: all segments of a window have these in common."""

    place: tuple[int, int]
    avg_logprob: float
    temperature: float
    no_speech_prob: float

    @property
    def is_unsure(self) -> bool:
        return self.avg_logprob < (RAISED_LOGPROB_MIN if self.temperature > 0 else LOGPROB_MIN)


@dataclass
class LanguageCheck:
    """The windows of one recording. `detect`: the code of the language of samples, None without such a model."""

    only: str
    detect: Callable[[np.ndarray], str | None]
    # Samples per second.
    rate: int
    is_sure: bool = False
    # The code of the other language; empty if it is not known which.
    other: str | None = None
    _unsure: list[Window] = field(default_factory=list)
    _seconds: float = 0.0

    @property
    def is_untouched(self) -> bool:
        """There was no speech so far."""
        return self._seconds == 0

    def add(self, window: Window, speech: np.ndarray, seconds: float) -> None:
        """A segment, with the window that it is of: `speech` is heard if the model is unsure of it."""
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
        """No more windows come. Noise, and a word or two, are not taken for another language."""
        is_speech = any(window.no_speech_prob < NO_SPEECH_MIN for window in self._unsure)
        if self.is_sure or not is_speech or self._seconds < SPEECH_SECONDS_MIN:
            self.is_sure = True
        elif self.other is None:
            self.other = ""
