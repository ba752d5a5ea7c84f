"""The service over HTTP: JSON, the SQL registry, settings, life cycle."""
