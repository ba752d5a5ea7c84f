"""All or nothing between a producer's database and its messages: half messages, decisions,
checkback.
"""
