"""Schedules: delayed messages, to get, move and cancel; and messages that are sent again and again,
as cron does.
"""
