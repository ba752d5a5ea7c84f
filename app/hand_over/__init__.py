"""A store that changes hands: what a RocketMQ broker's files say is taken over at a start, and
written for a broker while the service runs.
"""
