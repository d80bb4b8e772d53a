"""Checks paths in the arguments of calls: a path into a system directory is a violation."""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator

from scan.fold import Constants, Value, candidates
from scan.policy import PATH_FUNCTIONS, PATH_KEYWORDS, PATH_METHODS, SYSTEM_DIRECTORIES, SYSTEM_FILES_ALLOWED

SHOWN_CHARS_MAX = 80
WORKING_DIRECTORY = "/tmp"


def forbidden_paths(node: ast.Call, path: str | None, is_open_own: bool, constants: Constants) -> Iterator[str]:
    """
    Finds the forbidden paths that a call would open.

    `path` is the dotted path of the function if it belongs to a module. `is_open_own` is true if the program defines its
    own function `open`.
    """
    if isinstance(node.func, ast.Name) and node.func.id == "open" and path is None and not is_open_own:
        yield from _builtin_open(node, constants)
    elif _takes_path(node.func, path):
        for argument in _path_arguments(node):
            for value in candidates(argument, constants):
                # For these functions, a number is an index or a size and never a file descriptor, so only texts are checked.
                if not isinstance(value, int):
                    yield from _forbidden(value)


def _builtin_open(node: ast.Call, constants: Constants) -> Iterator[str]:
    named = [word.value for word in node.keywords if word.arg == "file"]
    for argument in [*node.args[:1], *named][:1]:
        for value in candidates(argument, constants):
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
    path = posixpath.normpath(posixpath.join(WORKING_DIRECTORY, text.removeprefix("file://")))
    if path.lstrip("/").partition("/")[0] in SYSTEM_DIRECTORIES and path not in SYSTEM_FILES_ALLOWED:
        yield f"access to file {text[:SHOWN_CHARS_MAX]!r} is not allowed"
