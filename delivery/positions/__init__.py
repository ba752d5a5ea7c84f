"""Committed offsets of groups: reset, lag, and what a broker and EscrowMQ take over."""
