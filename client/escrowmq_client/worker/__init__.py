"""Workers: receive messages of a group, handle several at once, settle each.

`book.py` and `ending.py` decide and are pure, `threads.py` and `tasks.py` act.
"""
