"""Audits of the log: the outcome of every transaction, from stored formats alone, with PySpark or
without.
"""
