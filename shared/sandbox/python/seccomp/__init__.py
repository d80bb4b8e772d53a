"""System call filters (seccomp) for Linux on x86-64 and AArch64, without libseccomp."""
