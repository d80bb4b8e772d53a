"""
Captures the figures of a program as PNG, each figure once.

    plt.show()                 sends each open figure at once
    fig.savefig(...)           sends the figure as it was saved, when the program ends (saved.py)
    image files (PIL, GIF)     files in the scratch directory are sent as PNG when the program ends
    open figures               are sent when the program ends, unless they were shown or saved

A figure that is shown and saved, or saved in several formats, is one plot. The limits here only avoid useless work and
inform the program; the supervisor enforces its own limits.
"""

from __future__ import annotations

import hashlib
import io
import sys
import time
import types
from collections.abc import Callable

import fonts
import imports
import saved

PYPLOT, FONT_MANAGER, ANIMATION = "matplotlib.pyplot", "matplotlib.font_manager", "matplotlib.animation"
PLOTS_MAX = 20
PLOT_BYTES_MAX = 5 << 20
PLOTS_BYTES_MAX = 20 << 20
DPI_MAX = 150

_emit: Callable[[bytes, bytes], None] | None = None
_digests: list[bytes] = []
_sent_bytes = 0
_is_full = False


def capture_when_imported() -> None:
    """Installs import hooks, so that figures are captured from the first import of pyplot on."""
    imports.when_loaded(FONT_MANAGER, fonts.add_fallback)
    imports.when_loaded(PYPLOT, _capture)
    imports.when_loaded(ANIMATION, _figures.watch_animations)


def draw_one() -> None:
    """Draws a figure and discards it, because the first figure loads fonts and fills caches."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot([0, 1], [0, 1], label="x")
    axes.set_title("x")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close("all")


def send_to(emit: Callable[[bytes, bytes], None]) -> None:
    """Starts to send plots by `emit(b"P", image)`. Call this after the caller's files were written."""
    global _emit
    _emit = emit
    _figures.start()
    saved.ignore_present_files()


def finish() -> None:
    """Sends the saved and open figures. A failure becomes a warning and does not change the exit status of the program."""
    try:
        _send_all()
    except Exception as error:
        _warn(f"{type(error).__name__}: {error}")


def render(figure, **options) -> bytes:
    """Draws a figure as PNG. @raises ValueError or MemoryError if the figure is too large to draw"""
    buffer = io.BytesIO()
    with _figures.paused():
        figure.savefig(buffer, **{"dpi": min(figure.dpi, DPI_MAX), "bbox_inches": "tight", **options, "format": "png"})
    return buffer.getvalue()


_figures = saved.SavedFigures(render, PLOTS_MAX, PLOT_BYTES_MAX, PLOTS_BYTES_MAX)


def _capture(pyplot: types.ModuleType) -> None:
    """Replaces all functions that show a figure, or that select a backend for showing figures."""
    import matplotlib
    from matplotlib.figure import Figure

    # The backend is selected now. Otherwise pyplot would select one at the first figure, with functions that are replaced below.
    pyplot.switch_backend("agg")
    pyplot.show = _show
    # The original `pause` also shows the figure, so each step of an animated loop would become a plot.
    pyplot.pause = time.sleep
    Figure.show = _show_figure
    _figures.watch(Figure)
    # Programs must not select another backend, because 'TkAgg' needs a screen, and with 'Agg' show() has no effect.
    matplotlib.use = pyplot.switch_backend = lambda *_, **__: None


def _show(*_args: object, **_options: object) -> None:
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        if _is_full:
            break
        _give(pyplot.figure(number))
    pyplot.close("all")


def _show_figure(self, warn: bool = True) -> None:
    from matplotlib import pyplot

    _give(self)
    pyplot.close(self)


def _give(figure) -> None:
    if _is_full or _figures.is_animation(figure):
        return
    try:
        image = render(figure)
    except (ValueError, MemoryError) as error:
        # All other exceptions are raised in the program.
        return _warn(f"{type(error).__name__}: {error}")
    _figures.was_sent(figure, image)
    _send(image)


def _send_all() -> None:
    files = saved.image_files(_figures.paths(), PLOT_BYTES_MAX)
    animations = [file for file in files if file.is_animation]
    # Animations are sent first, because their saved frames may use up the maximum number of plots.
    _send_files(animations)
    for image in _figures.images(without_temporary=bool(animations)):
        _send(image)
    _send_open_figures()
    _send_files([file for file in files if not file.is_animation])
    if _figures.dropped:
        _warn_full()


def _send_files(files: list[saved.ImageFile]) -> None:
    for file in files:
        if _is_full:
            return
        try:
            image = file.read()
        except Exception as error:
            _warn(f"{file.path}: {type(error).__name__}: {error}")
            continue
        # A file equal to a figure that was already sent is not sent again.
        if _digest(image) not in _digests:
            _send(image)


def _send_open_figures() -> None:
    pyplot = sys.modules.get(PYPLOT)
    for number in pyplot.get_fignums() if pyplot else ():
        figure = pyplot.figure(number)
        if not _figures.is_known(figure) and not saved.is_empty(figure):
            try:
                _give(figure)
            except Exception as error:
                _warn(f"{type(error).__name__}: {error}")


def _send(image: bytes) -> None:
    global _sent_bytes
    if _is_full:
        return
    if len(_digests) >= PLOTS_MAX:
        return _warn_full()
    if len(image) > PLOT_BYTES_MAX or _sent_bytes + len(image) > PLOTS_BYTES_MAX:
        return _warn(f"{len(image)} bytes are too many")
    _digests.append(_digest(image))
    _sent_bytes += len(image)
    if _emit is not None:
        _emit(b"P", image)


def _digest(image: bytes) -> bytes:
    return hashlib.sha256(image).digest()


def _warn_full() -> None:
    global _is_full
    if not _is_full:
        _is_full = True
        _warn(f"at most {PLOTS_MAX} are taken")


def _warn(reason: str) -> None:
    print(f"plot not captured: {reason}", file=sys.stderr)
