"""What the names of a program stand for, as far as the source tells without running it: modules, constants, its own."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from scan.fold import Value, fold
from scan.policy import DENIED_MEMBERS

# No module lies deeper, and a chain of ten thousand attributes is not worth walking from each of its ends.
CHAIN_MAX = 32
# Of a name in a loop over constants; a longer list counts as unknown, since each use of the name looks at all of them.
VALUES_MAX = 32
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Builtins that a program may have its own function for.
REPLACEABLE = frozenset("compile delattr eval exec getattr open setattr".split())


class Names:
    """Flow is not followed: a name that is bound anywhere means that everywhere."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        #: Path of the module, or of the member of one, that a name stands for.
        self.paths: dict[str, str] = {}
        #: Names that only `from module import *` can have brought: their use is all there is to see.
        self.starred: dict[str, str] = {}
        self.constants: dict[str, tuple[Value, ...]] = {}
        #: Classes of the program itself.
        self.classes = {"cls"}
        nodes = sorted(nodes, key=lambda node: getattr(node, "lineno", 0))
        bound = Counter(name for node in nodes for name in _bound_by(node))
        for node in nodes:
            self._import(node)
            if isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
            self._assign(node, bound)

    def path(self, node: ast.AST) -> str | None:
        """Of `np.random.mtrand` when `np` is a module. A call or a subscript gives an object, not a module."""
        parts = []
        while isinstance(node, ast.Attribute) and len(parts) < CHAIN_MAX:
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.paths:
            return None
        return ".".join([self.paths[node.id], *reversed(parts)])

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                self.paths[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                self.paths[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            if any(alias.name == "*" for alias in node.names):
                prefix = f"{node.module}."
                brought = [member for member in DENIED_MEMBERS if member.startswith(prefix)]
                self.starred |= {member.removeprefix(prefix): member for member in brought}

    def _assign(self, node: ast.AST, bound: Counter[str]) -> None:
        for target, values in _assignments(node):
            path = self.path(values[0]) if len(values) == 1 else None
            if path is not None:
                self.paths.setdefault(target, path)
            folded = tuple(fold(value, self.constants) for value in values[: VALUES_MAX + 1])
            if bound[target] == 1 and 0 < len(folded) <= VALUES_MAX and None not in folded:
                self.constants[target] = folded


def own_names(scope: ast.AST) -> frozenset[str]:
    """Names of builtins that a module or function binds itself: as parameters, by definitions, imports, assignments."""
    own = set()
    if isinstance(scope, FUNCTIONS):
        own |= {node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg)}
    body = scope.body if isinstance(scope.body, list) else []
    for statement in body:
        own.update(_defined_by(statement))
    return frozenset(own & REPLACEABLE)


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, DEFINITIONS):
        yield statement.name
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names)
    else:
        for target, values in _assignments(statement):
            # `exec = exec` is the builtin still.
            used = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
            if target not in used:
                yield target


def _assignments(node: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    """Each plain name that a statement or a comprehension binds, with the values it takes."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, [node.value]) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, [node.value]
    elif isinstance(node, (ast.For, ast.comprehension)):
        if isinstance(node.target, ast.Name) and isinstance(node.iter, (ast.List, ast.Tuple, ast.Set)):
            yield node.target.id, node.iter.elts


def _bound_by(node: ast.AST) -> Iterator[str]:
    """Every way of Python to give a name a value. One that another scope can set counts twice: it is no constant."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        yield from node.names * 2
    elif isinstance(node, ast.MatchMapping):
        if node.rest:
            yield node.rest
    elif isinstance(node, (*DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        if node.name:
            yield node.name
