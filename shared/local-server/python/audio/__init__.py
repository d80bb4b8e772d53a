"""Audio files to samples: the decoder, the fork server that it runs in, and the way to it."""
