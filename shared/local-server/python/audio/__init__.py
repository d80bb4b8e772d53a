"""Converts audio files to samples: the decoder, the fork server in which it runs, and the client of that server."""
