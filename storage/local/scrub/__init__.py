"""Verification of a store while it runs, at a limited rate."""
