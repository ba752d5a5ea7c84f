"""Other brokers at equal durability, on the same machine and in the same run: `make
bench-peers`.
"""
