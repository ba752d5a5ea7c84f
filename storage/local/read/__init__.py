"""Reads of messages: by queue, by key, by the offset of a record."""
