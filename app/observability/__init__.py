"""Log lines, metrics and rates: the process as an operator sees it."""
