"""The components of the service, over the parts that they start, stop and report on.

The names of loops and metrics are said here, and the check of readiness of each loop.
"""
