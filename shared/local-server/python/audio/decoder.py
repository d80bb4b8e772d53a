"""
Decodes one untrusted file with FFmpeg (PyAV), in a process of its own.

A file cannot exceed the limits of time, memory and output. A file also cannot make FFmpeg open other files: the
demuxers and decoders below follow no references, and the process cannot open files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

# The process that decodes may not start threads, so OpenBLAS must use a single thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import av  # noqa: E402
import av.logging  # noqa: E402
import numpy as np  # noqa: E402

from audio.mixing import BLOCK, Mixer, NotNumbers, Writer  # noqa: E402

# FFmpeg's names of the accepted formats. m4a and mp4 have one name, and so have mp3, mpga and MPEG audio.
DEMUXERS = {"wav": "wav", "mp3": "mp3", "flac": "flac", "ogg": "ogg", "mov": "mp4", "matroska": "webm", "mpeg": "mpeg"}
# Formats with an exact duration in the header. A file that contains less audio than its header declares is refused as truncated.
EXACT = ("flac", "mov", "matroska")
# Formats whose duration is computed from the content or the last page, and is nearly exact. A file that declares a duration above the
# maximum is refused before decoding.
DECLARING = (*EXACT, "wav", "ogg")
DECODERS = (
    "aac aac_latm ac3 adpcm_ima_qt adpcm_ima_wav adpcm_ms alac eac3 flac mp1 mp1float mp2 mp2float mp3 mp3float opus "
    "libopus vorbis pcm_alaw pcm_mulaw pcm_dvd pcm_f32be pcm_f32le pcm_f64be pcm_f64le pcm_s16be pcm_s16le pcm_s24be "
    "pcm_s24le pcm_s32be pcm_s32le pcm_s8 pcm_u8"
).split()
OPTIONS = {
    "format_whitelist": ",".join([*DEMUXERS, "mp4", "m4a", "3gp", "3g2", "mj2", "webm"]),
    "codec_whitelist": ",".join(DECODERS),
    "protocol_whitelist": "none",
    "enable_drefs": "0",
}
SECONDS_MIN = 0.1
# Range of accepted sample rates in Hz. With a lower rate, a few bytes would be hours of audio. Telephones use 8,000,
# and studios up to 192,000.
RATES = (4_000, 384_000)
CHANNELS_MAX = 8
# Maximum consecutive packets without sound. A file with more is refused.
SOUNDLESS_PACKETS_MAX = 10_000
# Sample formats in floating point. Such samples may be NaN or above full scale.
FLOATS = ("flt", "fltp", "dbl", "dblp")
NOT_NUMBERS_MAX = 0.5
# If a file was written as a stream, then its RIFF header declares a size near the maximum integer, which is ignored.
RIFF_SIZELESS = 0x7FFF_0000
# A declared duration may exceed the maximum duration by this much, because codecs count padding in it.
DECLARED_SLACK_SECONDS = 1.0
# Fraction of the declared length that may be missing before the file is refused. Many writers round the length or count padding.
MISSING_MAX = 0.1

NOT_AUDIO = "The file is not audio in one of the supported formats, or it is damaged."


class Refused(Exception):
    """The file is refused. `code` is an error code of the API, or `internal_error` if the file is not the cause."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Limits:
    """Limits for one file: CPU seconds of one core, and wall-clock seconds."""

    rate: int
    seconds_max: float
    cpu_seconds: int
    wall_seconds: int
    memory_bytes: int


def load() -> None:
    """Imports all modules of PyAV. PyAV loads some of them on first use, when the process may no longer open files."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if "__" not in module.name:
            importlib.import_module(module.name)
    av.logging.set_level(av.logging.PANIC)


def decode(source: BinaryIO, target: BinaryIO | None, limits: Limits) -> dict:
    """
    Writes mono signed 16-bit samples at `limits.rate` to `target`, and returns facts about the file.

    The facts are `duration` (seconds of decoded audio), `container`, `codec`, `channels` and `sample_rate` of the file.
    Raises Refused.
    """
    size = os.fstat(source.fileno()).st_size
    if size == 0:
        raise Refused("invalid_audio", "The file is empty.")
    if size < _riff_bytes(source) * (1 - MISSING_MAX):
        raise Refused("invalid_audio", "The file is truncated: it is shorter than its header declares.")
    try:
        with av.open(source, mode="r", options=OPTIONS, metadata_errors="ignore") as container:
            return _decode(container, target, limits)
    except MemoryError:
        raise Refused("invalid_audio", "The file needs too much memory to decode.") from None
    # PyAV raises FFmpeg's errors for an unreadable file, but also OSError and ValueError.
    except (av.error.FFmpegError, OSError, ValueError, OverflowError, RuntimeError, EOFError):
        raise Refused("invalid_audio", NOT_AUDIO) from None


def _decode(container: av.container.InputContainer, target: BinaryIO | None, limits: Limits) -> dict:
    if not container.streams.audio:
        raise Refused("invalid_audio", "The file has no audio track.")
    stream = container.streams.audio[0]
    for other in container.streams:
        if other.index != stream.index:
            other.discard = av.stream.Discard.all
    context = stream.codec_context
    if context is None or context.name not in DECODERS:
        raise Refused("invalid_audio", "The codec of the audio is not supported.")
    context.thread_count = 1
    # Some containers do not declare rate and channels. They are then checked when frames are decoded.
    _require_shape(context.sample_rate or RATES[0], context.channels or 1)
    facts = {
        "container": DEMUXERS[container.format.name.split(",")[0]],
        "codec": context.codec.canonical_name,
        "channels": context.channels,
        "sample_rate": context.sample_rate,
    }
    _require_declared(_declared_seconds(container, stream, DECLARING), limits)
    declared = _declared_seconds(container, stream, EXACT)
    samples = _copy_samples(container, stream, target, limits)
    if target is not None:
        with _full_disk_told():
            target.flush()
    duration = samples / limits.rate
    if samples == 0:
        raise Refused("invalid_audio", NOT_AUDIO)
    if declared - duration > max(1.0, declared * MISSING_MAX):
        message = f"The file is truncated: its header declares {declared:.1f} s of audio, but it contains {duration:.1f} s."
        raise Refused("invalid_audio", message)
    if duration < SECONDS_MIN:
        raise Refused("audio_too_short", f"The audio lasts {duration:.2f} s; at least {SECONDS_MIN} s are required.")
    return {"duration": duration, **facts}


def _riff_bytes(source: BinaryIO) -> int:
    """Size that the header of a WAV file declares; 0 for other files and for files written as a stream."""
    head = os.pread(source.fileno(), 8, 0)
    size = int.from_bytes(head[4:], "little")
    return size + 8 if head[:4] == b"RIFF" and size < RIFF_SIZELESS else 0


def _require_shape(rate: int, channels: int) -> None:
    low, high = RATES
    if not low <= rate <= high:
        raise Refused("invalid_audio", f"The file has a sample rate of {rate} Hz; {low} to {high} Hz are supported.")
    if channels > CHANNELS_MAX:
        raise Refused("invalid_audio", f"The file has {channels} channels; at most {CHANNELS_MAX} are supported.")


def _require_declared(seconds: float, limits: Limits) -> None:
    """Refuses a declared duration that is too long before decoding, which takes long for hours of silence."""
    if seconds > limits.seconds_max + DECLARED_SLACK_SECONDS:
        raise _too_long(limits)


def _too_long(limits: Limits) -> Refused:
    seconds = limits.seconds_max
    span = f"{seconds / 3600:.3g} hours" if seconds >= 3600 else f"{seconds:.3g} seconds"
    return Refused("audio_too_long", f"The audio is longer than {span}.")


def _declared_seconds(container: av.container.InputContainer, stream: av.AudioStream, formats: tuple[str, ...]) -> float:
    """Duration that the file declares; 0 if it declares none or is in another format than `formats`."""
    if container.format.name.split(",")[0] not in formats:
        return 0
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base


def _copy_samples(
    container: av.container.InputContainer, stream: av.AudioStream, target: BinaryIO | None, limits: Limits
) -> int:
    samples_max = int(limits.seconds_max * limits.rate)
    writer, channels, shape, soundless = Writer(target), None, None, 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            # A damaged packet becomes a gap, as in any player. If no packet of the file can be decoded, then the file
            # is refused later.
            frames = []
        soundless = 0 if frames else soundless + 1
        if soundless > SOUNDLESS_PACKETS_MAX:
            raise Refused("invalid_audio", NOT_AUDIO)
        for frame in frames:
            # Format, layout or rate may change within a stream, and each needs a resampler of its own.
            if shape != (shape := (frame.format.name, frame.layout.name, frame.sample_rate)) or channels is None:
                _require_shape(frame.sample_rate, frame.layout.nb_channels)
                if channels:
                    channels.end()
                channels = _Channels(frame, limits.rate, writer)
            channels.push(frame)
            if writer.samples > samples_max:
                raise _too_long(limits)
    if channels:
        channels.end()
    return writer.samples


class _Channels:

    def __init__(self, frame: av.AudioFrame, rate: int, writer: Writer) -> None:
        self._layout = frame.layout
        self._numbers = NotNumbers() if frame.format.name in FLOATS else None
        self._count = frame.layout.nb_channels
        # The output has interleaved channels ("flt"), because PyAV cannot read separate planes of a layout without a name.
        self._resampler = av.AudioResampler(format="flt", layout=frame.layout, rate=rate)
        self._mixer = Mixer(self._count)
        self._writer = writer
        self._waiting: list[np.ndarray] = []

    def push(self, frame: av.AudioFrame) -> None:
        frame.pts = None
        self._take(self._resampler.resample(self._with_numbers(frame) if self._numbers else frame))
        if sum(block.shape[1] for block in self._waiting) >= BLOCK:
            self._mix()

    def end(self) -> None:
        self._take(self._resampler.resample(None))
        self._mix()
        numbers = self._numbers
        if numbers and numbers.replaced > numbers.samples * NOT_NUMBERS_MAX:
            raise Refused("invalid_audio", "Most samples of the file are not numbers, or are far too large.")

    def _take(self, frames: list[av.AudioFrame]) -> None:
        self._waiting += [frame.to_ndarray().reshape(-1, self._count).T for frame in frames if frame.samples > 0]

    def _with_numbers(self, frame: av.AudioFrame) -> av.AudioFrame:
        samples = frame.to_ndarray()
        planes = samples if frame.format.is_planar else samples.reshape(-1, self._count).T
        with np.errstate(invalid="ignore"):
            found = self._numbers.replace(planes)
        if found is planes:
            return frame
        packed = found if frame.format.is_planar else np.ascontiguousarray(found.T).reshape(1, -1)
        replaced = av.AudioFrame.from_ndarray(packed, format=frame.format.name, layout=self._layout)
        replaced.sample_rate = frame.sample_rate
        return replaced

    def _mix(self) -> None:
        if not self._waiting:
            return
        block = np.concatenate(self._waiting, axis=1)
        self._waiting = []
        with _full_disk_told():
            self._writer.write(self._mixer.mix(block), self._numbers is not None)


@contextlib.contextmanager
def _full_disk_told() -> Iterator[None]:
    """Reports a full disk as `internal_error`. An unreadable file raises OSError too, but outside of this context."""
    try:
        yield
    except OSError:
        raise Refused("internal_error", "The disk has too little free space for the decoded audio.") from None
