"""Who speaks: voices in windows of speech, told apart and named."""
