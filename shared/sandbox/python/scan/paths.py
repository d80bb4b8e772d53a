"""Paths and addresses in the arguments of a call: the scratch directory is all that a program may open by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from scan.fold import Constants, Value, candidates
from scan.policy import PATH_FUNCTIONS, PATH_KEYWORDS, PATH_METHODS, SCRATCH

SHOWN_CHARS_MAX = 80
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def forbidden_paths(node: ast.Call, path: str | None, is_open_own: bool, constants: Constants) -> Iterator[str]:
    """
    What a call opens and may not.

    `path` is what the function is when it comes from a module; `is_open_own` when `open` is a function of the program.
    """
    if isinstance(node.func, ast.Name) and node.func.id == "open" and path is None and not is_open_own:
        yield from _builtin_open(node, constants)
    elif _takes_path(node.func, path):
        for argument in _path_arguments(node):
            for value in candidates(argument, constants):
                # A number is an index or a size here, never a descriptor.
                if not isinstance(value, int):
                    yield from _forbidden(value)


def _builtin_open(node: ast.Call, constants: Constants) -> Iterator[str]:
    """A path that is not known is refused: there is no telling what it opens."""
    named = [word.value for word in node.keywords if word.arg == "file"]
    first = [*node.args[:1], *named][:1]
    values = candidates(first[0], constants) if first else ()
    if not values:
        yield "open() with a computed path is not allowed"
    for value in values:
        yield from _forbidden(value)


def _takes_path(function: ast.expr, path: str | None) -> bool:
    if path is not None and path.rpartition(".")[2] in PATH_FUNCTIONS:
        return True
    return isinstance(function, ast.Attribute) and function.attr in PATH_METHODS


def _path_arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args[:2], *(word.value for word in node.keywords if word.arg in PATH_KEYWORDS)]


def _forbidden(value: Value) -> Iterator[str]:
    if isinstance(value, int):
        yield f"open() of file descriptor {value} is not allowed"
        return
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    shown = repr(text[:SHOWN_CHARS_MAX])
    if ADDRESS.match(text):
        yield f"network access to {shown} is not allowed"
    elif ".." in text.split("/") or (text.startswith(("/", "~")) and not text.startswith(SCRATCH)):
        yield f"access to file {shown} is not allowed"
