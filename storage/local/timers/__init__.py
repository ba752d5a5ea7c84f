"""The index of due times: in memory, and in timer files."""
