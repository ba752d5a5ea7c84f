"""Stored formats: bytes on a disk, and the values that they encode. Pure: no I/O, no clock, no
threads.

The layouts are Apache RocketMQ 5's, so that its tools read files of EscrowMQ and EscrowMQ reads its
stores; additions are in places that RocketMQ skips. docs/formats.md draws every file.
"""
