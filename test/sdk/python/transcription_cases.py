"""Runs the transcriptions of the openai package, of any major version from 1 on, against the service."""

import asyncio
import base64
import io
import tempfile
from pathlib import Path
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

from cases import GIVEN, fails, main

MODEL = "speech-1"
TEXT = "Hello world. How are you?"
# A WAV file of silence, two seconds in 16 bits at 16 kHz.
AUDIO = base64.b64decode(GIVEN["audio"])
VOICE = "data:audio/wav;base64," + GIVEN["audio"]
OPTIONS: Any = {"api_key": GIVEN["key"], "base_url": GIVEN["free"] + "/v1", "max_retries": 0}
CLIENT = OpenAI(**OPTIONS)


def transcribe(**more: Any) -> Any:
    return CLIENT.audio.transcriptions.create(**{"model": MODEL, "file": ("speech.wav", AUDIO), **more})


def case_transcribes_files_however_they_are_given() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "speech.wav"
        path.write_bytes(AUDIO)
        with path.open("rb") as file:
            assert transcribe(file=file).text == TEXT
        assert transcribe(file=path).text == TEXT
    assert transcribe(file=AUDIO).text == TEXT
    assert transcribe(file=io.BytesIO(AUDIO)).text == TEXT
    assert transcribe(file=("a.wav", AUDIO, "audio/wav")).text == TEXT


def case_gets_every_field_of_the_specification() -> None:
    answer = transcribe(response_format="json").to_dict()
    usage = answer.pop("usage")
    expected = {"text": TEXT, "logprobs": None, "duration": 2.71, "language": "", "segments": None, "words": None}
    assert answer == expected, answer
    assert usage["type"] == "duration" and usage["seconds"] == 3 and usage["total_tokens"] == 35, usage
    assert usage["input_token_details"] == {"audio_tokens": 28, "text_tokens": 0}


def case_gets_text_and_subtitles_as_strings() -> None:
    assert transcribe(response_format="text") == TEXT + "\n"
    assert transcribe(response_format="srt").startswith("1\n00:00:00,000 --> 00:00:01,300\nHello world.\n\n2\n")
    assert transcribe(response_format="vtt").startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.300\nHello world.\n\n")


def case_gets_segments_and_words() -> None:
    segments = transcribe(response_format="verbose_json")
    assert segments.language == "english" and segments.duration in (2.71, "2.71")
    assert [segment.text for segment in segments.segments] == [" Hello world.", " How are you?"]
    words = transcribe(response_format="verbose_json", timestamp_granularities=["word"], temperature=0.2, language="en")
    assert [word.word for word in words.words] == TEXT.split() and words.segments is None
    assert words.words[1].start == 0.4 and words.words[1].end == 0.7


def case_gets_speakers() -> None:
    fields = {"known_speaker_names": ["agent"], "known_speaker_references": [VOICE], "chunking_strategy": "auto"}
    answer = transcribe(response_format="diarized_json", extra_body=fields).to_dict()
    assert answer["text"] == "agent: Hello world.\nA: How are you?", answer
    assert [segment["speaker"] for segment in answer["segments"]] == ["agent", "A"]
    assert answer["segments"][0]["id"] == "seg_001"


def case_sends_a_chunking_strategy() -> None:
    strategy = {"type": "server_vad", "threshold": 0.4}
    assert transcribe(extra_body={"chunking_strategy": strategy}).text == TEXT
    error = fails(openai.BadRequestError, lambda: transcribe(extra_body={"chunking_strategy": {**strategy, "threshold": 9}}))
    assert error.param == "chunking_strategy.threshold", error.param


def case_gets_log_probabilities() -> None:
    answer = transcribe(extra_body={"include": ["logprobs"]}).to_dict()
    assert "".join(each["token"] for each in answer["logprobs"]) == " " + TEXT


def read(events: list[Any]) -> str:
    kinds = [event.type for event in events]
    assert kinds.count("transcript.text.done") == 1 and kinds[-1] == "transcript.text.done", kinds
    return "".join(event.delta for event in events if event.type == "transcript.text.delta")


def case_streams() -> None:
    events = list(transcribe(stream=True))
    assert read(events) == TEXT and events[-1].text == TEXT and events[-1].usage.total_tokens == 35


async def case_streams_asynchronously_with_segments() -> None:
    async with AsyncOpenAI(**OPTIONS) as client:
        stream = await client.audio.transcriptions.create(
            model=MODEL, file=("speech.wav", AUDIO), response_format="diarized_json", stream=True
        )
        events = [event async for event in stream]
    assert read(events) == TEXT
    speakers = [event.speaker for event in events if event.type == "transcript.text.segment"]
    assert speakers == ["A", "B"], speakers


async def case_makes_concurrent_calls_with_matching_responses() -> None:
    async with AsyncOpenAI(**OPTIONS) as client:
        calls = [client.audio.transcriptions.create(model=MODEL, file=("a.wav", AUDIO)) for _ in range(8)]
        answers = await asyncio.gather(*calls)
    assert [answer.text for answer in answers] == [TEXT] * 8


def case_gets_an_error_that_names_the_problem() -> None:
    error = fails(openai.NotFoundError, lambda: transcribe(model="no-such"))
    assert error.code == "model_not_found" and error.param == "model"
    error = fails(openai.BadRequestError, lambda: transcribe(file=("a.wav", b"This is no audio.")))
    assert error.code == "invalid_audio" and error.param == "file"
    error = fails(openai.BadRequestError, lambda: transcribe(response_format="srt", stream=True))
    assert error.param == "stream"


def case_gets_an_error_for_a_file_that_is_too_large() -> None:
    error = fails(openai.APIStatusError, lambda: transcribe(file=("a.wav", AUDIO + bytes(30_000_000))))
    assert error.status_code == 413 and error.param == "file", error


main(globals())
