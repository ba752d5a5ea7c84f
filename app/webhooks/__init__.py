"""Checks that are sent to the producer: where they may go, how they are signed, what counts as an
answer.
"""
