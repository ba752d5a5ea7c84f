"""Controls for users' tests: move the clock of the service, lose requests, let it crash.

Off unless a setting says so.
"""
