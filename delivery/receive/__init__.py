"""Receives: choose messages of a group, lease them, and note that in the log."""
