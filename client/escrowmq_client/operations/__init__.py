"""Every operation of the service, each written once: a pure function that returns a `Call`."""
