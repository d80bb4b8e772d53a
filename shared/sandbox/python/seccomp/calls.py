"""The tables of system calls in calls.txt."""

from __future__ import annotations

import os

from seccomp.assembler import Numbers


def _read() -> dict[str, dict[str, Numbers]]:
    with open(os.path.join(os.path.dirname(__file__), "calls.txt")) as file:
        words = (word for line in file if not line.startswith("#") for word in line.split())
        tables: dict[str, dict[str, Numbers]] = {}
        for word in words:
            if word.startswith("["):
                table = tables.setdefault(word.strip("[]"), {})
                continue
            name, _, numbers = word.partition("=")
            first, _, second = numbers.partition("/")
            table[name] = (int(first), int(second) if second else None)
        return tables


_TABLES = _read()
ALLOWED, DENIED = _TABLES["allowed"], _TABLES["denied"]
# Calls that are missing in the tables, because the decision depends on their arguments.
CLONE, CLONE3 = (56, 220), (435, 435)
