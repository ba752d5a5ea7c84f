"""Workers that are members of a group: they own queues, and handle the messages of each in order.

`share.py` decides and is pure, `threads.py` and `tasks.py` act.
"""
