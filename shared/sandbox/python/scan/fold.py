"""
Constant folding: computes strings that a program assembles from constants, so that the scan can check them. Examples:
`'o' + 's'`, `'so'[::-1]`, `''.join(map(chr, [111, 115]))`, `f'{"os"}'`.

Only constants in the source are used. Values that the program reads or computes in a loop are unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

LENGTH_MAX = 4096
DEPTH_MAX = 64
SIMPLE_METHODS = frozenset("lower lstrip removeprefix removesuffix replace rstrip strip swapcase upper".split())

Value = str | bytes | int
# Possible values of each name that the program binds only once, to a constant or in a loop over constants.
Constants = Mapping[str, Sequence[Value]]


def candidates(node: ast.AST, constants: Constants) -> Sequence[Value]:
    """All possible values of an expression; empty if they are unknown."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, ())
    value = fold(node, constants)
    return () if value is None else (value,)


def fold(node: ast.AST | None, constants: Constants, depth: int = 0) -> Value | None:
    """The value of a constant expression, at most LENGTH_MAX long; None if the value is unknown."""
    step = _STEPS.get(type(node))
    if step is None or depth > DEPTH_MAX:
        return None
    try:
        value = step(node, lambda part: fold(part, constants, depth + 1), constants)
    except (ArithmeticError, AttributeError, IndexError, LookupError, TypeError, ValueError):
        # The program fails at an invalid expression too, so the value of the expression is never used.
        return None
    return value if isinstance(value, int) or (isinstance(value, (str, bytes)) and len(value) <= LENGTH_MAX) else None


def _constant(node, part, constants):
    return node.value if isinstance(node.value, (str, bytes, int)) else None


def _name(node, part, constants):
    values = constants.get(node.id, ())
    return values[0] if len(values) == 1 else None


def _operation(node, part, constants):
    if isinstance(node.op, ast.Add):
        return _sum(node, part)
    left, right = part(node.left), part(node.right)
    if isinstance(node.op, ast.Mult) and isinstance(left, str) and isinstance(right, int):
        return left * min(right, LENGTH_MAX)
    # Only `%s` is computed, because a format with a large width could allocate any amount of memory.
    if isinstance(node.op, ast.Mod) and isinstance(left, str) and isinstance(right, str) and left.count("%") == 1:
        return left.replace("%s", right)
    return None


def _sum(node, part):
    """Adds the terms in a loop, because each further `+` nests a sum one level deeper, which would exceed DEPTH_MAX."""
    terms = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        terms.append(node.right)
        node = node.left
    values = [part(term) for term in [node, *reversed(terms)]]
    return "".join(values) if all(isinstance(value, str) for value in values) else sum(values)


def _negative(node, part, constants):
    return -part(node.operand) if isinstance(node.op, ast.USub) else None


def _formatted(node, part, constants):
    texts = [part(piece.value if isinstance(piece, ast.FormattedValue) else piece) for piece in node.values]
    return "".join(map(str, texts)) if None not in texts else None


def _subscript(node, part, constants):
    value = part(node.value)
    if not isinstance(value, (str, bytes)):
        return None
    if not isinstance(node.slice, ast.Slice):
        return value[part(node.slice)]
    bounds = (node.slice.lower, node.slice.upper, node.slice.step)
    limits = [None if bound is None else part(bound) for bound in bounds]
    if any(limit is None and bound is not None for limit, bound in zip(limits, bounds)):
        return None
    return value[slice(*limits)]


def _call(node, part, constants):
    function, arguments = node.func, node.args
    if isinstance(function, ast.Name):
        return chr(part(arguments[0])) if function.id == "chr" else None
    if not isinstance(function, ast.Attribute):
        return None
    if function.attr == "join":
        return part(function.value).join(_characters(arguments[0], part))
    if function.attr == "fromhex":
        return bytes.fromhex(part(arguments[0]))
    value = part(function.value)
    if function.attr == "decode" and isinstance(value, bytes):
        return value.decode("utf-8")
    if function.attr in SIMPLE_METHODS and isinstance(value, str):
        return getattr(value, function.attr)(*map(part, arguments))
    if function.attr == "format" and isinstance(value, str) and value.count("{") == value.count("{}") == 1:
        return value.replace("{}", str(part(arguments[0])))
    return None


def _characters(node, part):
    """The items of the argument of `join`: `[...]`, `(...)`, `map(chr, [...])`, `reversed('...')` or a string."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return [part(item) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "map" and isinstance(node.args[0], ast.Name) and node.args[0].id == "chr":
            return [chr(part(item)) for item in node.args[1].elts]
        if node.func.id == "reversed":
            return reversed(part(node.args[0]))
    return part(node)


_STEPS = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _operation,
    ast.UnaryOp: _negative,
    ast.JoinedStr: _formatted,
    ast.Subscript: _subscript,
    ast.Call: _call,
}
