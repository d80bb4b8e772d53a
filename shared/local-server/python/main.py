"""
The local model server: speech, speakers, embeddings and audio decoding over HTTP on a UNIX socket.

    main.py serve --site DIR --models DIR --run DIR [--memory-bytes-max N] [--audio-seconds-max N] [...]

`--run` is a private directory: the socket is DIR/http.sock, and uploads are stored in DIR/scratch. The server ends when
its standard input is closed, so it never outlives its parent process. The server logs JSON lines to standard error;
other lines there come from libraries. The commands `decode` and `speak` start its child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading

HERE = os.path.dirname(os.path.realpath(__file__))
# The code sandbox contains the assembler of system call filters, which this server uses too.
SANDBOX = os.path.join(os.path.dirname(os.path.dirname(HERE)), "sandbox", "python")
BACKLOG = 64


def main() -> None:
    """Runs the process that the first argument names: `serve`, `decode` or `speak`."""
    options = _options()
    # Ctrl-C in a terminal signals the whole process group. This process ignores the signal, because its parent first
    # drains the calls and then sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The flag -I removes the directories of the script and of the user from the module path, so the needed directories
    # are added here.
    sys.path[:0] = [HERE, SANDBOX, options.site]
    # faster-whisper imports this package to download models. The server downloads nothing, so the package is absent.
    sys.modules["huggingface_hub"] = type(sys)("huggingface_hub")
    if options.role == "decode":
        from audio import server

        server.main()
    elif options.role == "speak":
        from speech import worker

        worker.main(options.models, options.memory_bytes_max)
    else:
        serve(options)


def serve(options: argparse.Namespace) -> None:
    from confine import confinement

    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TMPDIR=os.path.join(options.run, "scratch"))
    scratch = os.environ["TMPDIR"]
    os.makedirs(scratch, mode=0o700)
    listening = _listen(os.path.join(options.run, "http.sock"))
    prefixes = [sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.executable))]
    readable = [*prefixes, HERE, SANDBOX, os.path.realpath(options.site), os.path.realpath(options.models)]
    confinement.limit_memory(options.memory_bytes_max)
    report = confinement.confine(readable, scratch)
    # These modules are imported after the confinement, so that their libraries load with restricted rights.
    from audio.decoding import Decoder
    from embeddings import Embedder
    from routes import Server, Services
    from speech.speech import Speech

    child = [sys.executable, "-I", "-B", os.path.join(HERE, "main.py"), *_passed_on(options)]
    services = Services(
        Embedder(os.path.join(options.models, "all-minilm-l6-v2")),
        Decoder(scratch, options.audio_seconds_max, child),
        Speech(child),
        scratch,
        options.upload_bytes_max,
    )
    print(json.dumps({"msg": "local model server confined", **report}), file=sys.stderr, flush=True)
    threading.Thread(target=_end_with_input, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Server(listening, services).serve_forever()


def _listen(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    sock.bind(path)
    os.umask(mask)
    sock.listen(BACKLOG)
    return sock


def _end_with_input() -> None:
    """Ends the process when its standard input is closed. The kernel then closes the channels of its children."""
    while os.read(0, 4096):
        pass
    os._exit(0)


def _passed_on(options: argparse.Namespace) -> list[str]:
    names = ("site", "models", "memory_bytes_max")
    return [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("role", choices=("serve", "decode", "speak"))
    parser.add_argument("--site", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--run")
    parser.add_argument("--memory-bytes-max", type=int, default=2 << 30)
    parser.add_argument("--audio-seconds-max", type=float, default=4 * 3600)
    parser.add_argument("--upload-bytes-max", type=int, default=64 << 20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
