"""Schedules: look at delayed messages, move them, cancel them."""
