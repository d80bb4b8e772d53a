"""What is said: the jobs of speech, the process that runs their models, and what it runs."""
