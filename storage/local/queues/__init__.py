"""Consume queues and the positions of groups in them."""
