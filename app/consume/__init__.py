"""Consuming under leases: receive, acknowledge, reject, extend, give back."""
