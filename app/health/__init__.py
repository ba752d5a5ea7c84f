"""Probes, metrics, the documents that the service serves about itself."""
