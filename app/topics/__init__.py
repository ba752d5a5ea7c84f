"""Topics: create, change, look at, list; their queues."""
