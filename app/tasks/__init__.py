"""Tasks: what the service does with many messages."""
