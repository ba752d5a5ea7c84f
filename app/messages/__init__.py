"""Sending messages, and pulling them by offset."""
