"""Client of EscrowMQ: what producers and consumers of the service need in their programs."""
