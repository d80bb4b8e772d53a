"""`POST /v1/audio/transcriptions` of the OpenAI API. The stream also contains segments and progress."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterator

from audio.decoding import Audio
from bodies import Form
from errors import ApiError
from speech.speech import Speech

# Models and the only language of each. None if the model supports and detects all languages of Whisper.
MODELS: dict[str, str | None] = {"whisper-tiny.en": "en", "whisper-base": None}
LANGUAGES = frozenset(
    """
    af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr
    ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc
    pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur uz vi yi yo zh
    yue
    """.split()
)
PROMPT_CHARACTERS_MAX = 16_384
# A second of audio counts as this many tokens (docs/reference/compatibility.md, Transcripts).
TOKENS_A_SECOND = 10


def read_job(form: Form) -> dict:
    """Checks the fields of the form. Raises ApiError with `param`."""
    if form.file is None:
        raise ApiError("missing_required_parameter", "file is missing.", param="file")
    model = form.get("model")
    if model not in MODELS:
        message = f"The model {str(model)[:100]!r} is not available for speech. Use one of {', '.join(MODELS)}."
        raise ApiError("model_not_found", message, status=404, param="model")
    response_format = form.get("response_format") or "json"
    if response_format not in ("json", "verbose_json"):
        message = "response_format must be 'json' or 'verbose_json'."
        raise ApiError("unsupported_value", message, param="response_format")
    granularities = form.list("timestamp_granularities")
    return {
        "kind": "transcribe",
        "model": model,
        "language": _read_language(form.get("language"), model),
        "only_language": MODELS[model],
        # The tokenizer would read `<|endoftext|>` in a text as the special token, so the text is changed.
        "prompt": (form.get("prompt") or "")[-PROMPT_CHARACTERS_MAX:].replace("<|", "< |"),
        "temperature": _number(form.get("temperature"), "temperature", 0, 1),
        "words": "word" in granularities,
        "segments": "segment" in granularities or not granularities,
        "logprobs": "logprobs" in form.list("include"),
        "vad": _read_vad(form.get("vad")),
        "format": response_format,
        "stream": form.get("stream") == "true",
    }


def events(speech: Speech, job: dict, audio: Audio, client: socket.socket | None) -> Iterator[dict]:
    """
    Yields the events of a stream, each as soon as possible; `transcript.text.done` is the last.

    Raises ApiError before any text if the speech is in a language that the model does not support.
    """
    text, logprobs = "", []
    messages = speech.run(job, [audio], client)
    for at, message in enumerate(messages):
        if "unknown_language" in message:
            # The remaining messages are read to the end, because closing the iterator early would kill the worker.
            for _ in messages:
                pass
            raise _unknown_language(job["model"], message["unknown_language"])
        if at == 0:
            yield _progress(0.0, audio)
        if "language" in message:
            yield {"type": "sluice.language", "language": message["language"]}
        elif "progress" in message:
            yield _progress(message["progress"], audio)
        elif "segment" in message:
            segment = message["segment"]
            found = segment.pop("logprobs", None)
            delta = segment["text"] if text else segment["text"].lstrip()
            text += delta
            logprobs += found or []
            extra = {} if found is None else {"logprobs": found}
            yield {"type": "transcript.text.delta", "delta": delta, **extra}
            yield {"type": "sluice.segment", "segment": segment}
        else:
            yield _done(text, message["done"], job, audio, logprobs)


def whole(speech: Speech, job: dict, audio: Audio, client: socket.socket | None) -> dict:
    segments, last = [], {}
    for last in events(speech, job, audio, client):
        if last["type"] == "sluice.segment":
            segments.append(last["segment"])
    if job["format"] == "json":
        return {name: value for name, value in last.items() if name != "type"}
    words = [
        {"word": word["word"].strip(), "start": word["start"], "end": word["end"]}
        for segment in segments
        for word in segment.pop("words")
    ]
    return {
        "task": "transcribe",
        "language": last["language"],
        "duration": audio.duration,
        "text": last["text"],
        **({"segments": segments} if job["segments"] else {}),
        **({"words": words} if job["words"] else {}),
        "usage": last["usage"],
    }


def _progress(seconds: float, audio: Audio) -> dict:
    return {"type": "sluice.progress", "seconds": min(seconds, audio.duration), "duration": audio.duration}


def _done(text: str, done: dict, job: dict, audio: Audio, logprobs: list[dict]) -> dict:
    audio_tokens = TOKENS_A_SECOND * math.ceil(audio.duration)
    input_tokens = audio_tokens + done["text_tokens"]
    return {
        "type": "transcript.text.done",
        "text": text,
        "language": done["language"] or "",
        "duration": audio.duration,
        **({"logprobs": logprobs} if job["logprobs"] else {}),
        "usage": {
            "type": "tokens",
            "input_tokens": input_tokens,
            "output_tokens": done["output_tokens"],
            "total_tokens": input_tokens + done["output_tokens"],
            "input_token_details": {"audio_tokens": audio_tokens, "text_tokens": done["text_tokens"]},
        },
    }


def _read_language(language: str | None, model: str) -> str | None:
    """Code of the requested language, which the model must support; None if it is to be detected."""
    if not language:
        return None
    code = {"english": "en"}.get(language.lower(), language.lower())
    only = MODELS[model]
    if only and code != only:
        message = f"{model} supports English only. Set model to one that supports {code[:20]!r}, such as {_multilingual()}."
        raise ApiError("unsupported_value", message, param="language")
    if code not in LANGUAGES:
        raise ApiError("unsupported_value", f"{model} does not support the language {code[:20]!r}.", param="language")
    return code


def _multilingual() -> str:
    return " or ".join(f"{name} of models.yaml" for name, only in MODELS.items() if only is None)


def _unknown_language(model: str, language: str) -> ApiError:
    """`language`: detected code; empty if no multilingual model was present to detect it."""
    found = f"The speech is probably in the language {language!r}." if language else "The speech is probably not English."
    message = (
        f"{found} {model} supports English only. Set model to one that detects languages, such as {_multilingual()}; "
        "or set language to 'en' to transcribe it as English."
    )
    return ApiError("unsupported_value", message, param="language")


def _read_vad(text: str | None) -> dict | None:
    if not text:
        return None
    try:
        asked = json.loads(text)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        raise ApiError("invalid_value", "vad must be a JSON object.", param="vad")
    bounds = {"threshold": (0, 1), "silence_duration_ms": (0, 60_000), "prefix_padding_ms": (0, 10_000)}
    return {name: _number(asked[name], f"vad.{name}", *bounds[name]) for name in bounds if asked.get(name) is not None}


def _number(value: object, name: str, least: float, most: float) -> float | None:
    if value in (None, ""):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise ApiError("invalid_value", f"{name} must be a number from {least} to {most}.", param=name)
    return number
