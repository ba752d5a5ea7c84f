"""Consumer groups: what they read and how, where they stand."""
