"""Read-only pages for operators, over the public API: static files, and no code of the service."""
