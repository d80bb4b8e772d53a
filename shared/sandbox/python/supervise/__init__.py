"""What stands around a program of a sandbox with processes: its supervisor, and what is taken from it first."""
