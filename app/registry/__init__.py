"""What people configured, in SQL: topics, groups, producer groups.

What happened is in the log alone.
"""
