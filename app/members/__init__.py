"""Members of consumer groups that own queues."""
