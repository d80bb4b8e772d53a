"""
Fonts of plots: a prepared font cache, and a fallback font for Chinese, Japanese and Korean text.

If a font lacks a glyph, matplotlib uses the next font of its list. Programs set that list themselves, for example by
`rcParams["font.sans-serif"] = ["SimHei"]` or a seaborn theme. The fallback font is therefore appended to every list.
Common CJK fonts that are not installed are registered as aliases of the fallback font.
"""

from __future__ import annotations

import os
import types

# Path of the font cache, and of its writable copy. matplotlib ignores a read-only configuration directory and would
# search all fonts again.
FONT_CACHE, CONFIGURATION = "/opt/matplotlib", "/tmp/.matplotlib"
FALLBACK_FAMILY = "WenQuanYi Micro Hei"
OTHER_NAMES = (
    "AppleGothic", "Apple SD Gothic Neo", "Arial Unicode MS", "FangSong", "Heiti SC", "Heiti TC", "Hiragino Sans",
    "Hiragino Sans GB", "IPAexGothic", "IPAGothic", "IPAPGothic", "KaiTi", "MS Gothic", "Malgun Gothic", "Meiryo",
    "Microsoft JhengHei", "Microsoft YaHei", "NanumGothic", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans CJK SC",
    "Noto Sans CJK TC", "Noto Sans JP", "Noto Sans KR", "Noto Sans SC", "PingFang SC", "PingFang TC", "SimHei", "SimSun",
    "Source Han Sans CN", "Source Han Sans SC", "STHeiti", "TakaoGothic", "TakaoPGothic", "WenQuanYi Zen Hei",
    "Yu Gothic",
)  # fmt: skip


def seed_cache() -> None:
    """Copies the font cache into a writable directory for matplotlib. Must be called before matplotlib is imported."""
    if not os.path.isdir(FONT_CACHE):
        return
    os.makedirs(CONFIGURATION, exist_ok=True)
    for name in os.listdir(FONT_CACHE):
        with open(os.path.join(FONT_CACHE, name), "rb") as source:
            with open(os.path.join(CONFIGURATION, name), "wb") as target:
                target.write(source.read())
    os.environ["MPLCONFIGDIR"] = CONFIGURATION


def add_fallback(font_manager: types.ModuleType) -> None:
    """Appends the fallback font to every font list. Does nothing if the font is not installed."""
    manager = font_manager.fontManager
    found = next((entry for entry in manager.ttflist if entry.name == FALLBACK_FAMILY), None)
    if found is None:
        return
    present = {entry.name for entry in manager.ttflist}
    for name in OTHER_NAMES:
        if name not in present:
            manager.ttflist.append(font_manager.FontEntry(fname=found.fname, name=name))
    find = type(manager)._find_fonts_by_props

    def find_with_fallback(self, *args, **options):
        paths = find(self, *args, **options)
        return paths if found.fname in paths else [*paths, found.fname]

    type(manager)._find_fonts_by_props = find_with_fallback
