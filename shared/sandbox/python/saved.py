"""
Images that a program saves: figures (`savefig`), and image files that other libraries wrote.

Saved figures are sent when the program ends, because a figure may still be shown or saved again. Figures are compared
by identity. A figure that is saved again counts as a second plot if its picture changed (`plt.clf()` in a loop),
unless it overwrote the file of the first.

A temporary picture was written to memory or to a file that was deleted. If the program made an animation, then its
temporary pictures are taken for frames and are not sent.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PNG = b"\x89PNG\r\n\x1a\n"
# Placeholder picture of a figure that was saved as an animation.
ANIMATION = b""
# The only directory that a program can write to.
SCRATCH = "/tmp"
ENTRIES_MAX = 10_000
ANIMATED = (".apng", ".gif")
IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp", *ANIMATED)
# Maximum number of times that an image is halved in size to fit the limit of a plot.
HALVINGS_MAX = 5
# Options of savefig that change the file format but not the picture.
FORMAT_OPTIONS = frozenset(("format", "backend", "metadata", "pil_kwargs"))

_present: dict[str, tuple[int, int]] = {}


@dataclass(eq=False)
class Saved:
    """A picture of a figure, with its savefig options. `path` is None if the picture was written to memory."""

    image: bytes
    options: dict
    path: str | None

    def is_temporary(self) -> bool:
        return self.path is None or not os.path.exists(self.path)


class SavedFigures:
    """Records which figures a program saved, and which were already sent."""

    def __init__(self, render: Callable[..., bytes], count_max: int, each_max: int, bytes_max: int) -> None:
        #: Number of pictures that were not recorded, because a limit was reached or drawing failed.
        self.dropped = 0
        self._render = render
        self._count_max = count_max
        self._each_max = each_max
        self._bytes_max = bytes_max
        self._pending: list[Saved] = []
        self._latest: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._paths: set[str] = set()
        self._is_started = False
        # The pauses are stored per thread, because another thread of the program may save a figure at the same time.
        self._pauses = threading.local()

    def start(self) -> None:
        """Called when the program starts. Figures that were saved before are not recorded."""
        self._is_started = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Figures that this thread saves inside the `with` block are not recorded."""
        before = self._is_paused()
        self._pauses.is_on = True
        try:
            yield
        finally:
            self._pauses.is_on = before

    def watch(self, figure_class: type) -> None:
        """Wraps savefig to record each saved figure."""
        save = figure_class.savefig

        @functools.wraps(save)
        def savefig(figure, fname, *args, **options):
            if self._is_paused():
                return save(figure, fname, *args, **options)
            try:
                with self.paused():
                    result = save(figure, fname, *args, **options)
            except OSError:
                # The directory may not exist in the sandbox, such as /mnt/data. The figure is recorded nevertheless.
                self._note(figure, None, options)
                raise
            self._note(figure, fname, options)
            return result

        figure_class.savefig = savefig

    def watch_animations(self, animation) -> None:
        """Wraps Animation.save, so that neither the frames nor the animated figure are sent as separate plots."""
        save = animation.Animation.save

        @functools.wraps(save)
        def save_animation(self_, filename, *args, **options):
            with self.paused():
                result = save(self_, filename, *args, **options)
            if str(filename).lower().endswith(IMAGES):
                self.was_sent(self_._fig, ANIMATION)
            return result

        animation.Animation.save = save_animation

    def was_sent(self, figure, image: bytes) -> None:
        """Records that the current state of the figure was sent."""
        latest = self._latest.get(figure)
        if latest in self._pending:
            self._pending.remove(latest)
        self._latest[figure] = Saved(image, {}, None)

    def is_known(self, figure) -> bool:
        """Whether the figure was already saved or sent."""
        return figure in self._latest

    def is_animation(self, figure) -> bool:
        """Whether the figure was saved as an animation, which is sent as a file."""
        return figure in self._latest and self._latest[figure].image == ANIMATION

    def paths(self) -> set[str]:
        """Paths of the files to which figures were saved."""
        return self._paths

    def images(self, *, without_temporary: bool) -> list[bytes]:
        """The saved pictures that were not sent, in the order in which they were saved."""
        return [each.image for each in self._pending if not (without_temporary and each.is_temporary())]

    def _is_paused(self) -> bool:
        return not self._is_started or getattr(self._pauses, "is_on", False)

    def _note(self, figure, target: object, options: dict) -> None:
        try:
            path = _path_of(target, options)
            if path:
                self._paths.add(path)
            if not is_empty(figure):
                self._add(figure, path, options)
        except Exception:
            # Drawing again may fail, for example if the figure is too large. The program keeps its file, but no plot is
            # sent.
            self.dropped += 1

    def _add(self, figure, path: str | None, options: dict) -> None:
        latest = self._latest.get(figure)
        if latest is not None and latest.path == path and path is not None:
            if latest in self._pending:
                self._pending.remove(latest)
        elif latest is not None and self._render(figure, **latest.options) == latest.image:
            latest.path = latest.path if path is None else path
            return
        added = self._taken(figure, path, options) if self._has_room(path) else None
        if added is None or sum(len(each.image) for each in [*self._pending, added]) > self._bytes_max:
            self.dropped += 1
            return
        self._pending.append(added)
        self._latest[figure] = added

    def _has_room(self, path: str | None) -> bool:
        if len(self._pending) < self._count_max:
            return True
        oldest = next((each for each in self._pending if each.is_temporary()), None) if path else None
        if oldest is not None:
            self._pending.remove(oldest)
        return oldest is not None

    def _taken(self, figure, path: str | None, options: dict) -> Saved:
        """Returns the content of the saved file if it is a suitable PNG; otherwise the figure is drawn again."""
        if path and not FORMAT_OPTIONS.intersection(options) and os.path.exists(path):
            if os.path.getsize(path) <= self._each_max:
                with open(path, "rb") as file:
                    image = file.read()
                if image.startswith(PNG):
                    return Saved(image, {"dpi": None, "bbox_inches": None, **options}, path)
        return Saved(self._render(figure), {}, path)


@dataclass(frozen=True)
class ImageFile:
    """An image that the program left in its scratch directory."""

    path: str
    size_max: int

    @property
    def is_animation(self) -> bool:
        return self.path.lower().endswith(ANIMATED)

    def read(self) -> bytes:
        """Returns the image as PNG, or as animated PNG. @raises OSError or ValueError if the file is not an image"""
        if os.path.getsize(self.path) <= self.size_max:
            with open(self.path, "rb") as file:
                image = file.read(self.size_max)
            if image.startswith(PNG):
                return image
        return _as_png(self.path, self.size_max)


def image_files(known: set[str], size_max: int) -> list[ImageFile]:
    """Image files that the program created, oldest first, without files of saved figures (`known`)."""
    new = [(status.st_mtime_ns, path) for path, status in _files() if _present.get(path) != _version(status)]
    return [ImageFile(path, size_max) for _, path in sorted(new) if path not in known]


def ignore_present_files() -> None:
    """Excludes image files that exist before the program starts."""
    _present.update((path, _version(status)) for path, status in _files())


def is_empty(figure) -> bool:
    """Whether nothing was drawn. For example, `plt.savefig()` after `plt.show()` saves a new, empty figure."""
    return len(figure.get_children()) <= 1


def _files() -> Iterator[tuple[str, os.stat_result]]:
    entries = 0
    for directory, directories, names in os.walk(SCRATCH):
        directories[:] = [name for name in directories if not name.startswith(".")]
        entries += len(directories) + len(names)
        if entries > ENTRIES_MAX:
            return
        for name in names:
            path = os.path.join(directory, name)
            if name.lower().endswith(IMAGES) and os.path.isfile(path) and not os.path.islink(path):
                yield path, os.stat(path)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _path_of(target: object, options: dict) -> str | None:
    """Path of the file that savefig wrote; None for a buffer in memory. SCRATCH if the target has no known path."""
    if isinstance(target, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(target))
        default = f"{path.rstrip('.')}.{options.get('format') or 'png'}"
        return path if os.path.splitext(path)[1] else default
    if target is None or isinstance(target, io.BytesIO):
        return None
    name = getattr(target, "name", None)
    return os.path.abspath(name) if isinstance(name, str) else SCRATCH


def _as_png(path: str, size_max: int) -> bytes:
    from PIL import Image

    with Image.open(path) as image:
        data = _encoded(image, save_all=getattr(image, "is_animated", False))
        for _ in range(HALVINGS_MAX):
            if len(data) <= size_max:
                break
            # If an animation is too large, then only its first frame is sent.
            image.seek(0)
            image = image.convert("RGBA").reduce(2)
            data = _encoded(image)
    return data


def _encoded(image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="png", **options)
    return buffer.getvalue()
