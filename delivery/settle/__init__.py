"""Settles leased messages: acknowledges, rejects and extends them, or moves them elsewhere."""
