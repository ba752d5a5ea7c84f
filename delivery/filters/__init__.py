"""Filters of subscriptions, and reads of what they select."""
