"""Administration over HTTP: loops, store, settings, disk, recovery, and the key of the request."""
