"""Promises of the nodes of a service, so that it has one primary."""
