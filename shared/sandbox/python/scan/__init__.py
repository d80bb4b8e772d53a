"""Finds forbidden imports, calls and paths in a program before it runs."""
