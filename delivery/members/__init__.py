"""Members of a consumer group, each of which owns queues."""
