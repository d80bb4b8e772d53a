"""Hooks that adapt a module when it is first imported, so that a program which does not import it saves the time."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder


def when_loaded(name: str, then: Callable[[types.ModuleType], None]) -> None:
    """Calls `then` with a module right after its first import. Must be called before that import."""
    sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """An import finder for one module that wraps the loader of that module."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._name else None
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader:
    def __init__(self, loader, then: Callable[[types.ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)
