"""`escrowmq import`: take over a RocketMQ store, follow a broker, read its offsets."""
