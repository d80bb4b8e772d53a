"""Speaker diarization: finds the voices in windows of speech, distinguishes and names them."""
