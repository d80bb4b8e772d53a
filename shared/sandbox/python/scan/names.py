"""Resolves the names of a program without running it: to modules, to constants, or to definitions of the program."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from scan.fold import Value, fold
from scan.policy import DENIED_MEMBERS

# Maximum attributes of a resolved path. No module is nested deeper, and a chain of thousands would take quadratic time.
CHAIN_MAX = 32
# Maximum values of a name in a loop over constants. A longer list counts as unknown, because each use of the name checks
# all values.
VALUES_MAX = 32
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Builtins whose names a program may use for its own functions.
REPLACEABLE = frozenset("compile delattr eval exec getattr open setattr".split())


class Names:
    """The names of a program. Control flow is ignored: a name that is bound anywhere has that meaning everywhere."""

    def __init__(self, nodes: Iterable[ast.AST]) -> None:
        #: Dotted path of the module, or of the member of a module, to which each name refers.
        self.paths: dict[str, str] = {}
        #: Denied names that `from module import *` may have bound. The import alone is allowed, but a use of such a name is not.
        self.starred: dict[str, str] = {}
        self.constants: dict[str, tuple[Value, ...]] = {}
        self.classes = {"cls"}
        nodes = sorted(nodes, key=lambda node: getattr(node, "lineno", 0))
        bound = Counter(name for node in nodes for name in _bound_by(node))
        for node in nodes:
            self._import(node)
            if isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
            self._assign(node, bound)

    def path(self, node: ast.AST) -> str | None:
        """The dotted path of an expression such as `np.random.mtrand`, if it begins with the name of a module."""
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
    """Builtins that a scope replaces by its own parameters, definitions, imports or assignments."""
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
            # An assignment such as `exec = exec` still binds the builtin, so the name does not become a function of the program.
            used = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
            if target not in used:
                yield target


def _assignments(node: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    """Yields each plain name that a statement or comprehension binds, with its values."""
    if isinstance(node, ast.Assign):
        yield from ((target.id, [node.value]) for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, [node.value]
    elif isinstance(node, (ast.For, ast.comprehension)):
        if isinstance(node.target, ast.Name) and isinstance(node.iter, (ast.List, ast.Tuple, ast.Set)):
            yield node.target.id, node.iter.elts


def _bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node binds, in any way. A `global` or `nonlocal` name counts twice, so that it is no constant."""
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
