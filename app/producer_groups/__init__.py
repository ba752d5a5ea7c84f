"""Producer groups, and the checks that they answer."""
