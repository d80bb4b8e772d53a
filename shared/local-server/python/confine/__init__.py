"""What is taken from a process before it meets any input."""
