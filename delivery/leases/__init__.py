"""Leases of messages: the table in memory, its events in the log, receipt handles."""
