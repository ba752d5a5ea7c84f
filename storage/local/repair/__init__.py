"""Repairs of a store that is stopped."""
