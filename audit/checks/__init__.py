"""What else the log can be asked beside the outcomes of transactions: one module for each check."""
