"""Idempotency keys, and the responses that their requests got."""
