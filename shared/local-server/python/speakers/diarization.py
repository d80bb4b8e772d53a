"""`POST /diarize`: the turns of speakers. Known speakers are recognised by samples of their voices."""

from __future__ import annotations

import base64
import binascii
import contextlib
import socket
import tempfile

from audio.decoding import Audio, Decoder
from bodies import Form
from errors import ApiError
from speech.speech import Speech

KNOWN_MAX = 4
SECONDS_MIN, SECONDS_MAX = 2.0, 10.0
# Decoding of a voice sample stops after this many seconds. A sample that is too long but ends earlier is refused with its exact length.
DECODED_SECONDS_MAX = 60
# Tolerance of SECONDS_MIN and SECONDS_MAX, in seconds, because a decoder may return some milliseconds more or less than were recorded.
TOLERANCE = 0.05


def answer(form: Form, decoder: Decoder, speech: Speech, directory: str, client: socket.socket | None) -> dict:
    """Raises ApiError `invalid_reference` with `index` for a bad sample; errors of the decoder for the file."""
    if form.file is None:
        raise ApiError("missing_required_parameter", "file is missing.", param="file")
    names = form.list("known_speaker_names")
    references = form.list("known_speaker_references")
    if len(names) != len(references) or len(names) > KNOWN_MAX:
        message = f"known_speaker_references must have one entry per known_speaker_names, at most {KNOWN_MAX}."
        raise ApiError("invalid_value", message, param="known_speaker_references")
    with contextlib.ExitStack() as open_files:
        audio = [open_files.enter_context(contextlib.closing(decoder.decode(form.file, client)))]
        for index, reference in enumerate(references):
            sample = _decode_reference(reference, index, decoder, directory, client)
            audio.append(open_files.enter_context(contextlib.closing(sample)))
        job = {"kind": "diarize", "names": names}
        turns = [message["done"]["turns"] for message in speech.run(job, audio, client)][-1]
        return {"duration": audio[0].duration, "turns": turns}


def _decode_reference(
    reference: str, index: int, decoder: Decoder, directory: str, client: socket.socket | None
) -> Audio:
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(_data_of(reference, index))
        try:
            audio = decoder.decode(file, client, seconds_max=DECODED_SECONDS_MAX)
        except ApiError as error:
            if error.status != 400:
                raise
            raise _invalid(index, f"cannot be used: {error.message}") from None
    if not SECONDS_MIN - TOLERANCE <= audio.duration <= SECONDS_MAX + TOLERANCE:
        audio.close()
        raise _invalid(index, f"lasts {audio.duration:.1f} s; {SECONDS_MIN:.0f} to {SECONDS_MAX:.0f} s are required.")
    return audio


def _data_of(url: str, index: int) -> bytes:
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64") or not comma:
        raise _invalid(index, "is not a data: URL in base64.")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise _invalid(index, "is not valid base64.") from None


def _invalid(index: int, what: str) -> ApiError:
    message = f"Reference {index} {what}"
    return ApiError("invalid_reference", message, param=f"known_speaker_references[{index}]", index=index)
