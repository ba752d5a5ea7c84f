"""What operators look at: the loops, the store, the disk below it."""
