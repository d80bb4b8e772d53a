"""Extracts the recordings from the downloaded packages: `unpack_speech.py DOWNLOADS TARGET`."""

import glob
import os
import shutil
import sys
import tarfile
import zipfile

downloads, target = sys.argv[1:3]
os.mkdir(target)


def keep(source, name, ending="wav"):
    with source, open(os.path.join(target, f"{name}.{ending}"), "wb") as file:
        shutil.copyfileobj(source, file)


with zipfile.ZipFile(glob.glob(os.path.join(downloads, "pyannote*.whl"))[0]) as wheel:
    for ending in ("wav", "rttm"):
        keep(wheel.open(f"pyannote/audio/sample/sample.{ending}"), "telephone", ending)
with zipfile.ZipFile(glob.glob(os.path.join(downloads, "moonshine*.whl"))[0]) as wheel:
    keep(wheel.open("moonshine_voice/assets/beckett.wav"), "beckett")
    keep(wheel.open("moonshine_voice/assets/two_cities.wav"), "two-cities")
with tarfile.open(glob.glob(os.path.join(downloads, "*.tar.gz"))[0]) as sources:
    for member in sources.getmembers():
        name = os.path.basename(member.name)
        if "/librivox/" in member.name and name.endswith(".wav"):
            keep(sources.extractfile(member), f"austen-{name[-8:-4]}")
