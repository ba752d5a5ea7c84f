"""`escrowmq store`: look at a store, verify it, repair it, copy it."""
