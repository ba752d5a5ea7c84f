"""The door: HTTP, JSON, the SQL registry, settings, life cycle."""
