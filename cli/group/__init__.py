"""`escrowmq group`: consumer groups of a running service."""
