"""What a program may not import, call or open, found before it runs."""
