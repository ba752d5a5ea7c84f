"""Delivery to consumers: leases, acknowledgements, retries, dead letters, filters and requests."""
