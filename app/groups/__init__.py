"""Consumer groups: what they read and how, and their offsets."""
