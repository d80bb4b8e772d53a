"""The supervisor of a program, and the limits and namespaces that it sets up first. Not used under WebAssembly."""
