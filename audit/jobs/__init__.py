"""The work of the commands: audit, reconcile, watch, copy, compact."""
