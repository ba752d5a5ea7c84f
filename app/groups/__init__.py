"""Consumer groups: where each of them continues."""
