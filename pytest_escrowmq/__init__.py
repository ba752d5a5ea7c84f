"""For the tests of who uses EscrowMQ: a real service for each test, a clock to move, faults to
switch on.

A package of its own name: pytest loads it wherever EscrowMQ is installed, beside whatever the
project under test is called. Nothing is imported here, since every run of pytest would pay for it.
"""
