"""Topics: create, look at, list; their queues."""
