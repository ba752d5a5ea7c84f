"""Workers: receive messages of a group, handle several at once, settle each.

`book.py` decides and is pure, `threads.py` and `tasks.py` act.
"""
