"""Filters of system calls (Linux, x86-64 and AArch64), written without libseccomp."""
