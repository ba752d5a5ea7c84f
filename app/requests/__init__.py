"""Request and reply."""
