"""Checks of the log beside the outcomes of transactions: one module each."""
