"""Backups of a data directory, made while its service runs, and restored to a point."""
