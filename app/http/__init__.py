"""One request over HTTP, whatever serves it: its connection, its key, its origin, its answer."""
