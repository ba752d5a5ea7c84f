"""The key index, in RocketMQ's index files."""
