"""Audits over HTTP: reports, the proof of one transaction, the segments that there are."""
