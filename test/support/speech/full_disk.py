"""Decodes a file while the disk for its samples is full: `full_disk.py SERVER SITE FILE`. Prints the error of the caller."""

import json
import os
import sys

server, site, source = sys.argv[1:]
sys.path[:0] = [server, site]
from audio import decoding  # noqa: E402
from errors import ApiError  # noqa: E402

decoding.tempfile.TemporaryFile = lambda dir: open("/dev/full", "r+b", buffering=0)
command = [sys.executable, "-I", "-B", os.path.join(server, "main.py"), f"--site={site}", "--models=none"]
with open(source, "rb") as file:
    try:
        decoding.Decoder("none", 100, command).decode(file, None)
    except ApiError as error:
        print(json.dumps({"status": error.status, "code": error.code}), flush=True)
# The fork server ends when its channel is closed.
os._exit(0)
