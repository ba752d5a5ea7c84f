"""Appends: units are written at the end of the log, synced, and copied to other disks."""
