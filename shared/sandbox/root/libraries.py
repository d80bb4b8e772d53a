"""Finds the shared libraries that programs and extension modules need, with ldd, and copies them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

BATCH = 64
# `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x...)`, and for the loader only `/lib64/ld-linux-x86-64.so.2 (0x...)`.
FOUND = re.compile(r"^\t(?:(\S+) => )?(/\S+) \(0x", re.MULTILINE)
ELF = b"\x7fELF"


def copy_needed(root: str, target: str, also: tuple[str, ...]) -> None:
    """
    Copies the shared libraries that the ELF files below `root` need into `target`, unless they are below `root` already.
    The dynamic loader is copied to its original path instead.

    `also` names libraries that are loaded at run time. If this machine lacks one of them, then that library is skipped.
    """
    # The original interpreter is examined too. The original may find libpython in its own directory, while the copy of the interpreter does
    # not find it.
    files = [os.path.realpath(sys.executable), *filter(_is_elf, _all_files(root))]
    needed = {path: name for name, path in _listed_by_ldd(files) if not path.startswith(root + os.sep)}
    for path, name in needed.items():
        if name:
            shutil.copy(path, os.path.join(target, os.path.basename(name)))
        else:
            place = root + path
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy(path, place)
    for name in also:
        _copy_loaded(name, target)


def _listed_by_ldd(files: list[str]) -> set[tuple[str, str]]:
    listed: set[tuple[str, str]] = set()
    for start in range(0, len(files), BATCH):
        # ldd fails for static programs, which need no shared library. The error is ignored.
        result = subprocess.run(["ldd", *files[start : start + BATCH]], capture_output=True, text=True)
        listed |= set(FOUND.findall(result.stdout))
    return listed


def _copy_loaded(name: str, target: str) -> None:
    """Copies a library that the dynamic loader finds. A process loads the library and prints its path from /proc."""
    show = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"
    result = subprocess.run([sys.executable, "-I", "-c", show, name], capture_output=True, text=True)
    for path in re.findall(r"(/\S+)$", result.stdout, re.MULTILINE):
        if os.path.basename(path) == name:
            shutil.copy(path, target)
            return


def _all_files(root: str) -> list[str]:
    return [os.path.join(directory, name) for directory, _, files in os.walk(root) for name in files]


def _is_elf(path: str) -> bool:
    if os.path.islink(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == ELF
