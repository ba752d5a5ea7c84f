"""Requests that wait for a reply."""
