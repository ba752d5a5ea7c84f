"""The audit in one process, without Spark and without Arrow: for small logs.

It shares with Spark the walk, the decoder's numbers (`decode/numbers.py`), the rules of outcomes
(`rules.py`) and the checks (`checks/`), both evaluated by SQLite here, and the report.
"""
