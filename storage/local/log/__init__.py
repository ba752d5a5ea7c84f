"""The commit log: its files, the space ahead of its end, and walks over it."""
