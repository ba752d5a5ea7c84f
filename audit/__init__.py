"""PySpark jobs that read the log and prove what became of every transaction.

Reads stored formats and nothing else.
"""
