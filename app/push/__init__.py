"""Messages that are sent to endpoints of consumers."""
