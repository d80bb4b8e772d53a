"""Removes rights from a process before it reads any input."""
