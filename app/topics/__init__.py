"""Topics: create, change, get, list; their queues."""
