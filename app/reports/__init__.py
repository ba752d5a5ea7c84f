"""Reports of audits: made one at a time by a process beside the service, kept as rows and files."""
