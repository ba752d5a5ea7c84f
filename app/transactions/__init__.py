"""Transactions: begin, commit, roll back, look at, resolve."""
