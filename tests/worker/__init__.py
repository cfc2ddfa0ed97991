"""Workers, on one broker."""
