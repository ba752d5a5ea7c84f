"""Recovery at a start, and what it reports."""
