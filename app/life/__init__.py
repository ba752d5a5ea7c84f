"""The life of a node: as the service, as a replica of it, and from one to the other."""
