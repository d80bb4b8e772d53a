"""
Takes the figures of a program: `plt.show()` gives each open figure as a PNG instead of a window.

The caps on number and size only spare work and tell the program; the supervisor holds to them.
"""

from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable

import imports

PYPLOT = "matplotlib.pyplot"
PLOTS_MAX = 20
PLOT_BYTES_MAX = 5 << 20
PLOTS_BYTES_MAX = 20 << 20
DPI_MAX = 150
# Where a font cache made beforehand is, and where matplotlib may read it: in a directory that it cannot write to it
# does not look, and searches all fonts again.
FONT_CACHE, CONFIGURATION = "/opt/matplotlib", "/tmp/.matplotlib"

_emit: Callable[[bytes, bytes], None] | None = None
_shown = 0
_shown_bytes = 0


def capture_when_imported() -> None:
    """From the first import of pyplot on, whoever does it, figures are taken."""
    imports.when_loaded(PYPLOT, _capture)


def draw_one() -> None:
    """Draws a figure and throws it away: the first one loads fonts and fills caches."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    axes.plot([0, 1], [0, 1], label="x")
    axes.set_title("x")
    axes.legend()
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close("all")


def seed_font_cache() -> None:
    """Copies the font cache to where matplotlib takes it from. Before matplotlib is imported."""
    if not os.path.isdir(FONT_CACHE):
        return
    os.makedirs(CONFIGURATION, exist_ok=True)
    for name in os.listdir(FONT_CACHE):
        with open(os.path.join(FONT_CACHE, name), "rb") as source:
            with open(os.path.join(CONFIGURATION, name), "wb") as target:
                target.write(source.read())
    os.environ["MPLCONFIGDIR"] = CONFIGURATION


def send_to(emit: Callable[[bytes, bytes], None]) -> None:
    """Figures go to `emit(b"P", png)` from now on."""
    global _emit
    _emit = emit


def _capture(pyplot: types.ModuleType) -> None:
    """Puts the capture in the place of everything that shows a figure or picks another way to show it."""
    import matplotlib
    from matplotlib.figure import Figure

    # It is chosen at the first figure otherwise, by what is replaced below.
    pyplot.switch_backend("agg")
    pyplot.show = _show
    Figure.show = _show_figure
    # 'TkAgg' needs a screen, and 'Agg' would make show() do nothing.
    matplotlib.use = pyplot.switch_backend = lambda *_, **__: None


def _show(*_args: object, **_options: object) -> None:
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        if not _give(pyplot.figure(number)):
            break
    pyplot.close("all")


def _show_figure(self, warn: bool = True) -> None:
    from matplotlib import pyplot

    _give(self)
    pyplot.close(self)


def _give(figure) -> bool:
    """False when no other figure will be taken."""
    global _shown, _shown_bytes
    if _shown >= PLOTS_MAX:
        return _say(f"at most {PLOTS_MAX} are taken", can_follow=False)
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format="png", dpi=min(figure.dpi, DPI_MAX), bbox_inches="tight")
    except (ValueError, MemoryError) as error:
        # Larger than can be drawn; what else goes wrong is the program's to see.
        return _say(f"{type(error).__name__}: {error}")
    png = buffer.getvalue()
    if len(png) > PLOT_BYTES_MAX or _shown_bytes + len(png) > PLOTS_BYTES_MAX:
        return _say(f"{len(png)} bytes are too many")
    _shown += 1
    _shown_bytes += len(png)
    if _emit is not None:
        _emit(b"P", png)
    return True


def _say(reason: str, can_follow: bool = True) -> bool:
    print(f"plot not captured: {reason}", file=sys.stderr)
    return can_follow
