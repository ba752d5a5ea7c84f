"""The roof: the `escrowmq` command. The one room that may know all the others."""
