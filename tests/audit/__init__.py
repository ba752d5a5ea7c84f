"""The audit: what it reads, and what it says."""
