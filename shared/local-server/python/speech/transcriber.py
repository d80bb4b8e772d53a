"""Speech to text with Whisper (faster-whisper on CTranslate2)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator

import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.transcribe import Segment, restore_speech_timestamps
from faster_whisper.vad import collect_chunks

from speech.language_check import LanguageCheck, Window
from speech.samples import RATE, Block, blocks, vad_options

# Automatic temperature: if a text repeats itself or is improbable, then the next temperature is tried.
LADDER = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
FRAMES_A_SECOND = 100
# Maximum tokens of a prompt: the limit of the model, minus a few, because encoding the text again may give more tokens. Only the end of a
# longer prompt is used.
PROMPT_TOKENS_MAX = 216
# If a phrase of up to this many tokens occurs twice in a row in a prompt, then one copy is removed. The model would
# otherwise repeat the phrase forever.
PHRASE_TOKENS_MAX = 16
# Maximum tokens of a window with a prompt. Fast speech has 5 per second; more tokens mean that the text repeats itself.
PROMPTED_TOKENS, PROMPTED_TOKENS_A_SECOND = 16, 5
WINDOW_SECONDS = 30
# Defaults of faster-whisper. A text with a higher compression ratio repeats itself; one with a lower log probability
# is improbable.
COMPRESSION_MAX, LOGPROB_MIN = 2.4, -1.0


class Transcriber:

    def __init__(self, directory: str) -> None:
        self._model = WhisperModel(directory, device="cpu", compute_type="int8", cpu_threads=1)
        start = self._model.hf_tokenizer.token_to_id("<|startoftranscript|>")
        self._recorder = self._model.model = _Recorder(self._model.model, start, self._text_of)
        self._bytes = _byte_of_character()

    def transcribe(
        self, samples: np.ndarray, job: dict, detect: Callable[[np.ndarray], str | None] = lambda _: None
    ) -> Iterator[dict]:
        """
        Yields `{"language": code}`, `{"segment": …}` and `{"progress": seconds}` as they become known, then `{"done": …}`.

        job: `language`, `only_language`, `prompt`, `temperature` (0 or absent: automatic), `words`, `logprobs`, `vad`.
        Times are seconds of the whole audio. Silence yields only progress. If the job names no language, then it is
        detected. If the speech is probably not in `only_language`, then the one message before the end is
        `{"unknown_language": code or ""}`. `detect` is passed to `LanguageCheck`.
        """
        check = LanguageCheck(job.get("only_language") or "", detect, RATE)
        check.is_sure = bool(job.get("language") or not check.only or job.get("temperature"))
        held: list[dict] = []
        done = {}
        for message, done in self._messages(samples, job, check):
            held.append(message)
            if check.other is not None:
                break
            if check.is_sure or check.is_untouched:
                yield from held
                held.clear()
        check.finish()
        if check.other is not None:
            yield {"unknown_language": check.other}
            yield {"done": {}}
            return
        yield from held
        yield {"done": done}

    def detect_language(self, speech: np.ndarray) -> str:
        """Detects the language of the first 30 seconds of samples from -1 to 1. Returns its code."""
        return self._model.detect_language(speech)[0]

    def _messages(self, samples: np.ndarray, job: dict, check: LanguageCheck) -> Iterator[tuple[dict, dict]]:
        """Yields each message, together with the content of `done` in case the message is the last one."""
        prompt = self._model.hf_tokenizer.encode(job.get("prompt") or "", add_special_tokens=False).ids
        prompt = without_repeats(prompt)[-PROMPT_TOKENS_MAX:]
        language = job.get("language") or job.get("only_language")
        count, done = 0, {"language": language, "text_tokens": len(prompt), "output_tokens": 0}
        for block in blocks(samples, vad_options(job.get("vad"))):
            speech = _speech_of(block)
            if not language and len(speech) > 0:
                language = done["language"] = self.detect_language(speech)
                yield {"language": language}, done
            for segment in self._transcribe_block(block, speech, job, self._model.hf_tokenizer.decode(prompt), language):
                figures = segment.avg_logprob, segment.temperature or 0.0, segment.no_speech_prob
                check.add(Window((block.start, segment.seek), *figures), speech, segment.end - segment.start)
                done["output_tokens"] += len(self._text_tokens(segment))
                yield {"segment": self._describe(segment, block, count, job)}, done
                yield {"progress": _seconds(block, segment.end)}, done
                count += 1
            yield {"progress": round(block.end / RATE, 2)}, done

    def _transcribe_block(
        self, block: Block, speech: np.ndarray, job: dict, prompt: str, language: str | None
    ) -> Iterator[Segment]:
        if len(speech) == 0:
            return
        self._recorder.prompted_tokens = PROMPTED_TOKENS + math.ceil(
            PROMPTED_TOKENS_A_SECOND * min(WINDOW_SECONDS, len(speech) / RATE)
        )
        temperature = job.get("temperature") or 0.0
        segments, _ = self._model.transcribe(
            speech,
            language=language,
            temperature=temperature if temperature > 0 else LADDER,
            # The text of a window is not used as the prompt of the next window. Small models would repeat a mistake of
            # one window for minutes.
            condition_on_previous_text=False,
            # `hotwords` apply to every window, whereas `initial_prompt` applies only to the first.
            hotwords=prompt or None,
            word_timestamps=bool(job.get("words") or job.get("logprobs")),
        )
        yield from restore_speech_timestamps(segments, block.speech, RATE)

    def _describe(self, segment: Segment, block: Block, index: int, job: dict) -> dict:
        described = {
            "id": index,
            "seek": round(block.start / RATE * FRAMES_A_SECOND) + segment.seek,
            "start": _seconds(block, segment.start),
            "end": _seconds(block, segment.end),
            "text": segment.text.rstrip(),
            "tokens": list(segment.tokens),
            "temperature": segment.temperature,
            "avg_logprob": segment.avg_logprob,
            "compression_ratio": segment.compression_ratio,
            "no_speech_prob": segment.no_speech_prob,
            "words": [],
        }
        if job.get("words"):
            described["words"] = [
                {
                    "word": word.word,
                    "start": _seconds(block, word.start),
                    "end": _seconds(block, word.end),
                    "probability": float(word.probability),
                }
                for word in segment.words or []
            ]
        if job.get("logprobs"):
            described["logprobs"] = self._logprobs(segment)
        return described

    def _text_tokens(self, segment: Segment) -> list[int]:
        return self._only_text(segment.tokens)

    def _only_text(self, tokens: list[int]) -> list[int]:
        end_of_text = self._model.hf_tokenizer.token_to_id("<|endoftext|>")
        return [token for token in tokens if token < end_of_text]

    def _text_of(self, tokens: list[int]) -> str:
        return self._model.hf_tokenizer.decode(self._only_text(tokens))

    def _logprobs(self, segment: Segment) -> list[dict]:
        tokens = self._text_tokens(segment)
        found = self._recorder.take(tokens)
        return [
            {"token": data.decode(errors="replace"), "logprob": math.log(max(p, 1e-10)), "bytes": list(data)}
            for data, p in zip(map(self._token_bytes, tokens), found)
        ]

    def _token_bytes(self, token: int) -> bytes:
        return bytes(self._bytes[character] for character in self._model.hf_tokenizer.id_to_token(token))


def _speech_of(block: Block) -> np.ndarray:
    """The samples of a block that contain speech, without the silent parts between them."""
    if not block.speech:
        return np.empty(0, np.float32)
    pieces, _ = collect_chunks(block.samples, block.speech)
    return np.concatenate(pieces)


def _seconds(block: Block, seconds: float) -> float:
    """Converts a time in a block to one of the whole audio. The model may round up beyond the end, so it is limited."""
    return round(min(block.start / RATE + seconds, block.end / RATE), 2)


def without_repeats(tokens: list[int]) -> list[int]:
    """Removes repetitions from a prompt: of a phrase of up to 16 tokens that follows itself, one is kept."""
    kept: list[int] = []
    for token in tokens:
        kept.append(token)
        for size in range(1, PHRASE_TOKENS_MAX + 1):
            if len(kept) >= 2 * size and kept[-size:] == kept[-2 * size : -size]:
                del kept[-size:]
                break
    return kept


class _Recorder:
    """
    The model, with two additions.

    1. The probability of each text token of the last window is stored. faster-whisper returns only those of words.
    2. If a window's text with a prompt repeats itself or is improbable, the window is read again without the prompt.
    """

    def __init__(self, model: object, start: int, text_of: Callable[[list[int]], str]) -> None:
        self._model = model
        self._start = start
        self._text_of = text_of
        self._unprompted: object | None = None
        self.prompted_tokens = 0
        self._tokens: list[int] = []
        self._probabilities: list[float] = []

    def generate(self, encoded: object, prompts: list[list[int]], *args: object, **options: object):
        plain = [prompt[prompt.index(self._start) :] for prompt in prompts]
        if plain != prompts and encoded is not self._unprompted:
            most = min(options["max_length"], len(prompts[0]) + self.prompted_tokens)
            results = self._model.generate(encoded, prompts, *args, **{**options, "max_length": most})
            if self._is_good(results[0], most - len(prompts[0])):
                return results
            self._unprompted = encoded
        return self._model.generate(encoded, plain, *args, **options)

    def _is_good(self, result: object, most: int) -> bool:
        tokens = result.sequences_ids[0]
        text = self._text_of(tokens).strip().encode()
        is_unlikely = result.scores[0] * len(tokens) / (len(tokens) + 1) < LOGPROB_MIN
        is_repetitive = len(text) > COMPRESSION_MAX * len(zlib.compress(text))
        return len(tokens) < most and not is_unlikely and not is_repetitive

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def align(self, encoded: object, start: list[int], texts: list[list[int]], *args: object, **options: object):
        results = self._model.align(encoded, start, texts, *args, **options)
        # faster-whisper aligns one window per call and passes all segments of the window as one text. The lists therefore cover one window.
        self._tokens = [token for text in texts for token in text]
        self._probabilities = [float(p) for result in results for p in result.text_token_probs]
        return results

    def take(self, tokens: list[int]) -> list[float]:
        """The probabilities of a segment's tokens. Tokens of segments that faster-whisper dropped are skipped."""
        for at in range(len(self._tokens) - len(tokens) + 1):
            if self._tokens[at : at + len(tokens)] == tokens:
                found = self._probabilities[at : at + len(tokens)]
                self._tokens, self._probabilities = (
                    self._tokens[at + len(tokens) :],
                    self._probabilities[at + len(tokens) :],
                )
                return found
        return []


def _byte_of_character() -> dict[str, int]:
    """Inverse of `bytes_to_unicode` of GPT-2, whose vocabulary represents each byte by one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}
