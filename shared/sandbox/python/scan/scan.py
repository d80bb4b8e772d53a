"""
Finds forbidden imports and calls in a program before it runs. The scan reads the tree that is then compiled.

The scan gives early errors with line numbers; it is no security barrier. The sandbox stops the following, which the
scan cannot find:

1. Names and code that are computed at run time, such as `getattr(obj, input())`.
2. Builtins under another name (`f = open`), and objects that are passed through containers and calls.
3. A builtin whose name the program binds in code that never runs.
4. Code in files.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from scan import paths
from scan.fold import candidates
from scan.names import FUNCTIONS, Names, own_names
from scan.policy import (
    DENIED_ATTRIBUTES,
    DENIED_NAMES,
    MODULE_LOADERS,
    is_denied,
    is_denied_import,
)

__all__ = ["is_denied_import", "scan"]

FINDINGS_MAX = 50
NAME_CHARS_MAX = 80
BY_NAME = ("getattr", "setattr", "delattr")
STRING_RUNNERS = ("timeit.timeit", "timeit.repeat", "timeit.Timer")
BUILTIN_RUNNERS = ("compile", "eval", "exec")
# Words that are not allowed in the expressions of `df.eval` and `df.query`, because they give access to other objects.
OUTSIDE_A_FRAME = DENIED_ATTRIBUTES | DENIED_NAMES

Own = frozenset[str]


def scan(tree: ast.AST) -> list[str]:
    """Returns the violations of a program by line, at most FINDINGS_MAX: `line 3: import of 'os' is not allowed`."""
    found = sorted(_Scan(tree).findings(), key=lambda finding: finding[0])
    return list(dict.fromkeys(f"line {line}: {text}" for line, text in found))[:FINDINGS_MAX]


class _Scan:
    """One walk over a tree. The stack is a list, because a tree can be deeper than Python's recursion limit."""

    def __init__(self, tree: ast.AST) -> None:
        self._tree = tree
        self._names = Names(ast.walk(tree))
        # Ids of `__import__` nodes whose call was already checked with its arguments. Such a node is not reported again as a use of the
        # name.
        self._called_imports: set[int] = set()

    def findings(self) -> Iterator[tuple[int, str]]:
        pending: list[tuple[ast.AST, Own]] = [(self._tree, frozenset())]
        while pending:
            node, own = pending.pop()
            look = getattr(self, f"_in_{type(node).__name__}", None)
            if look is not None:
                yield from ((getattr(node, "lineno", 1), text) for text in look(node, own))
            pending += _children(node, own)

    def _in_Import(self, node: ast.Import, own: Own) -> Iterator[str]:
        for alias in node.names:
            if is_denied(alias.name):
                yield _refused(alias.name)

    def _in_ImportFrom(self, node: ast.ImportFrom, own: Own) -> Iterator[str]:
        module = node.module or ""
        if node.level:
            yield f"import relative to a package ({_quoted('.' * node.level + module)}) is not allowed"
        elif is_denied_import(module, [alias.name for alias in node.names]):
            yield _refused(module)
        else:
            for alias in node.names:
                if is_denied(f"{module}.{alias.name}") or alias.name in DENIED_ATTRIBUTES:
                    yield f"import of {_quoted(alias.name)} from {_quoted(module)} is not allowed"

    def _in_Name(self, node: ast.Name, own: Own) -> Iterator[str]:
        if node.id in DENIED_NAMES or (node.id == "__import__" and id(node) not in self._called_imports):
            yield f"use of '{node.id}' is not allowed"
        elif node.id in self._names.starred:
            yield f"use of '{self._names.starred[node.id]}' is not allowed"

    def _in_Attribute(self, node: ast.Attribute, own: Own) -> Iterator[str]:
        if node.attr == "__subclasses__" and _name_of(node.value) in self._names.classes:
            return
        if node.attr in DENIED_ATTRIBUTES:
            yield f"access to attribute '{node.attr}' is not allowed"
        else:
            yield from self._member(self._names.path(node.value), node.attr)

    def _in_MatchClass(self, node: ast.MatchClass, own: Own) -> Iterator[str]:
        for name in node.kwd_attrs:
            if name in DENIED_ATTRIBUTES:
                yield f"access to attribute '{name}' is not allowed"

    def _in_Subscript(self, node: ast.Subscript, own: Own) -> Iterator[str]:
        yield from self._item(node.slice)

    def _in_Call(self, node: ast.Call, own: Own) -> Iterator[str]:
        path = self._names.path(node.func)
        if path in STRING_RUNNERS:
            yield from self._strings_that_run(node, node.args[:2])
        elif (path or _name_of(node.func)) in MODULE_LOADERS:
            yield from self._loaded_module(node)
        elif path in ("operator.attrgetter", "operator.methodcaller"):
            for argument in node.args:
                yield from self._by_name(None, argument)
        if isinstance(node.func, ast.Name) and node.func.id not in own:
            if node.func.id in BUILTIN_RUNNERS:
                yield from self._strings_that_run(node, node.args[:1])
            elif node.func.id in BY_NAME and len(node.args) > 1:
                yield from self._by_name(node.args[0], node.args[1])
            elif node.func.id == "vars" and node.args and self._names.path(node.args[0]):
                yield f"access to every member of module '{self._names.path(node.args[0])}' is not allowed"
        elif isinstance(node.func, ast.Attribute):
            yield from self._method(node, node.func)
        yield from paths.forbidden_paths(node, path, "open" in own, self._names.constants)

    def _method(self, node: ast.Call, function: ast.Attribute) -> Iterator[str]:
        if function.attr in ("__getattribute__", "__getattr__", "__setattr__"):
            for argument in node.args:
                yield from self._by_name(None, argument)
        elif function.attr in ("get", "pop", "setdefault", "__getitem__") and node.args:
            yield from self._item(node.args[0])
        elif function.attr in ("query", "eval") and node.args:
            for text in self._strings(node.args[0]):
                if OUTSIDE_A_FRAME.intersection(re.findall(r"\w+", text)) or self._leaves_by_variable(text):
                    yield f"an expression of {function.attr}() that reaches outside its frame is not allowed"
        elif function.attr in ("format", "format_map"):
            for text in self._strings(function.value):
                if DENIED_ATTRIBUTES.intersection(re.findall(r"[.\[](\w+)", text)):
                    yield "a format string that reads a forbidden attribute is not allowed"

    def _member(self, module: str | None, name: str) -> Iterator[str]:
        """Checks the use of a module's member. Members of a denied module are skipped, because the module was reported."""
        if module is None or is_denied(module):
            return
        if is_denied(f"{module}.{name}"):
            yield f"use of {_quoted(f'{module}.{name}')} is not allowed"
        elif name == "__dict__":
            yield f"access to every member of module {_quoted(module)} is not allowed"

    def _by_name(self, owner: ast.expr | None, name: ast.expr) -> Iterator[str]:
        module = None if owner is None else self._names.path(owner)
        for text in self._strings(name):
            denied = OUTSIDE_A_FRAME.intersection(text.split("."))
            if denied:
                yield f"access to attribute '{min(denied)}' is not allowed"
            else:
                yield from self._member(module, text)

    def _item(self, key: ast.expr) -> Iterator[str]:
        for text in self._strings(key):
            if text in ("__builtins__", "__import__", "__globals__"):
                yield f"access to item '{text}' is not allowed"

    def _leaves_by_variable(self, expression: str) -> bool:
        """Whether an expression of `query` or `eval` reaches a denied module by a variable, as in `@np.os.system(...)`."""
        words = re.findall(r"@\s*([\w.]+)", expression)
        tops = [(self._names.paths.get(word.partition(".")[0]), word.partition(".")[2]) for word in words]
        return any(module and is_denied(f"{module}.{rest}") for module, rest in tops)

    def _loaded_module(self, node: ast.Call) -> Iterator[str]:
        """Checks `importlib.import_module('numpy')` like an import. A computed name is refused, because it cannot be checked."""
        self._called_imports.add(id(node.func))
        names = [name for argument in node.args[:1] for name in self._strings(argument)]
        if not names:
            yield "import of a module with a computed name is not allowed"
        yield from (_refused(name) for name in names if is_denied(name))

    def _strings_that_run(self, node: ast.Call, arguments: list[ast.expr]) -> Iterator[str]:
        code = [*arguments, *(word.value for word in node.keywords if word.arg in ("source", "stmt", "setup"))]
        for text in (text for argument in code for text in self._strings(argument)):
            try:
                nested = ast.parse(text.strip())
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                # A string that is not valid Python also fails in the program, so its content needs no check.
                continue
            yield from (f"in a string that is run: {finding}" for _, finding in _Scan(nested).findings())

    def _strings(self, node: ast.expr) -> list[str]:
        return [value for value in candidates(node, self._names.constants) if isinstance(value, str)]


def _children(node: ast.AST, own: Own) -> Iterator[tuple[ast.AST, Own]]:
    """The child nodes, each with its scope. Decorators, defaults and annotations belong to the scope around a function."""
    inside = own | own_names(node) if isinstance(node, (ast.Module, *FUNCTIONS)) else own
    for field, value in ast.iter_fields(node):
        scope = inside if field == "body" else own
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child, scope


def _name_of(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _refused(module: str) -> str:
    return f"import of {_quoted(module)} is not allowed"


def _quoted(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS_MAX else f"{name[:NAME_CHARS_MAX]}…")
