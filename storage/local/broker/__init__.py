"""Files that a RocketMQ broker and EscrowMQ both read or write."""
