"""Where messages live: the seam, two engines behind it, and the stored formats.

This file imports nothing, so that a reader of stored files (the audit) can load `storage.formats`
alone.
"""
