"""The log as the audit reads it: its segments, their rows, copies of them, the files beside it."""
