"""Later: what runs by the clock."""
