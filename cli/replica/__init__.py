"""`escrowmq replica`: follow a service, promote a replica."""
