"""Consuming under leases: receive, acknowledge, refuse, extend, give up."""
