"""Delayed messages, cron schedules, and the periodic loops of the service."""
