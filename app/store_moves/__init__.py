"""Stores that change hands between a RocketMQ broker and EscrowMQ: copies, and what is kept."""
