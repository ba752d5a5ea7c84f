"""Measured, never asserted: `make bench`, or `python -m benchmarks NAME ...` for some of them.

Each figure stands beside its limit, or a peer, in the same run, as a ratio: the machine's mood
cancels out.
"""
