"""Configuration in SQL: topics, consumer groups, producer groups, keys, cron schedules.

What happened is in the log alone.
"""
