"""Bytes on a disk, and the values they stand for. Pure: no I/O, no clock, no threads.

The layouts are Apache RocketMQ 5's, so that its tools read our files and we read its stores; what
we add lies where RocketMQ skips it. docs/formats.md draws every file.
"""
