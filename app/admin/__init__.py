"""Operators: what they look at."""
