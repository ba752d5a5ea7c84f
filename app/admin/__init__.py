"""What operators look at: the loops, the store, the disk below it, what is in force; and who is
asking.
"""
