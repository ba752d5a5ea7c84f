"""What tests of our users may do to the service: move its clock, lose requests, let it crash.

Off unless a setting says so.
"""
