"""`escrowmq audit`, `compact`, `reconcile` and `watch`."""
