"""Speech recognition: its jobs, and the worker process that runs the models."""
