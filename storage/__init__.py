"""Storage of messages: the interface of an engine, two engines, and the stored formats.

This file imports nothing, so that a reader of stored files (the audit) can load `storage.formats`
alone.
"""
