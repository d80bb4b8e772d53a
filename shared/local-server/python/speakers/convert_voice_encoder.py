"""
Makes voice.npz of Resemblyzer's pretrained.pt, without torch: `convert_voice_encoder.py SITE SOURCE TARGET`.

The file is a pickle of torch before 1.6. Unpickling can call anything the file names, so this one names nothing real:
every class it asks for is one of three harmless stand-ins, or the file is refused. The layout: three pickles
(magic, protocol, system), the object, the keys of its storages, then each storage as a count and raw numbers.
"""

from __future__ import annotations

import collections
import pickle
import struct
import sys
from typing import BinaryIO

TYPES = {"FloatStorage": "<f4", "LongStorage": "<i8", "IntStorage": "<i4"}
MAGIC = 0x1950A86A20F9469CFC6C


class Inert(pickle.Unpickler):
    """Knows tensors as (storage, offset, shape), and no other class."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self.types: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, *_: (storage, offset, size)
        if module == "torch" and name in TYPES:
            return name
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")

    def persistent_load(self, pid: tuple) -> str:
        _, kind, key = pid[:3]
        self.types[key] = TYPES[kind]
        return key


def convert(source: BinaryIO, target: str) -> None:
    """Writes the network's tensors, without the optimiser's, as an .npz without pickles."""
    import numpy as np

    if Inert(source).load() != MAGIC:
        raise pickle.UnpicklingError("not a file of torch")
    Inert(source).load()
    Inert(source).load()
    unpickler = Inert(source)
    model = unpickler.load()["model_state"]
    storages = {}
    for key in Inert(source).load():
        (count,) = struct.unpack("<q", source.read(8))
        kind = np.dtype(unpickler.types[key])
        storages[key] = np.frombuffer(source.read(count * kind.itemsize), kind)
    tensors = {}
    for name, (storage, offset, size) in model.items():
        if name.startswith(("lstm.", "linear.")):
            tensors[name] = storages[storage][offset : offset + int(np.prod(size))].reshape(size)
    with open(target, "wb") as file:
        np.savez(file, **tensors)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    with open(sys.argv[2], "rb") as file:
        convert(file, sys.argv[3])
