"""Transactions: begin, commit, roll back, get, resolve."""
