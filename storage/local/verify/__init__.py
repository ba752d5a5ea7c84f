"""Verify every file of a store, running or stopped, in small steps.

Changes nothing and takes no lock.
"""
