"""Schedules: look at delayed messages, move them, cancel them; and send messages again and again,
as cron does.
"""
