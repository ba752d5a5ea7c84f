"""Records of the log as Arrow columns, many at a time: numpy finds where everything is, Arrow
copies it.

Nothing here loops over records: a column costs 2 to 150 ns a record (benchmarks/audit.py). What a
record states about itself is checked before it is followed, so forged bytes end as a damaged row
and never as an error.

`batches.py` is what others ask; `records.py` finds where in the bytes each record's fields, texts
and properties lie, and `transaction_columns.py` and `other_columns.py` make columns of them.
"""
