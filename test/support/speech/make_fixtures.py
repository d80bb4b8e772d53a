"""
Writes one recording in every supported container and codec: `make_fixtures.py SITE SOURCE.wav DIRECTORY`.

PyAV comes from the local model server's own environment.
"""

import os
import sys

sys.path.insert(0, sys.argv[1])
import av  # noqa: E402

# For each file name: muxer, encoder, sample rate, channel layout, and options of the muxer.
KINDS = {
    "wav-s16.wav": ("wav", "pcm_s16le", 16000, "mono", {}),
    "wav-24-bit-stereo.wav": ("wav", "pcm_s24le", 44100, "stereo", {}),
    "wav-mulaw.wav": ("wav", "pcm_mulaw", 8000, "mono", {}),
    "flac.flac": ("flac", "flac", 16000, "mono", {}),
    "mp3.mp3": ("mp3", "libmp3lame", 44100, "stereo", {}),
    "mp3.mpga": ("mp3", "libmp3lame", 22050, "mono", {}),
    "mp2.mpeg": ("mpeg", "mp2", 44100, "stereo", {}),
    "mp3-in-mpeg.mpeg": ("mpeg", "libmp3lame", 44100, "stereo", {}),
    "aac.mp4": ("mp4", "aac", 44100, "stereo", {}),
    "aac-fragmented.mp4": ("mp4", "aac", 44100, "mono", {"movflags": "frag_keyframe+empty_moov"}),
    "aac-faststart.m4a": ("ipod", "aac", 24000, "mono", {"movflags": "faststart"}),
    "alac.m4a": ("ipod", "alac", 16000, "mono", {}),
    "opus.ogg": ("ogg", "libopus", 48000, "mono", {}),
    "vorbis.ogg": ("ogg", "vorbis", 44100, "stereo", {}),
    "opus.webm": ("webm", "libopus", 48000, "mono", {}),
    "vorbis.webm": ("webm", "vorbis", 44100, "stereo", {}),
}


def write(source: str, target: str, muxer: str, encoder: str, rate: int, layout: str, options: dict) -> None:
    with av.open(source) as audio, av.open(target, "w", format=muxer, options=options) as out:
        stream = out.add_stream(encoder, rate=rate, layout=layout)
        # FFmpeg's own Vorbis encoder requires the experimental flag.
        stream.codec_context.options = {"strict": "experimental"}
        stream.codec_context.open()
        resampler = av.AudioResampler(
            format=stream.codec_context.format, layout=layout, rate=rate, frame_size=stream.codec_context.frame_size
        )
        for frame in [*audio.decode(audio=0), None]:
            for piece in resampler.resample(frame):
                out.mux(stream.encode(piece))
        out.mux(stream.encode(None))


for name, kind in KINDS.items():
    write(sys.argv[2], os.path.join(sys.argv[3], name), *kind)
