"""Bytes on a disk: the operating system as one Protocol, and mapped segments over it.

Knows nothing of messages.
"""
