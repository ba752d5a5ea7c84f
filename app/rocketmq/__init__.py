"""RocketMQ's protocols between brokers, as far as they are spoken here."""
