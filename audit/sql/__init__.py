"""Reports as tables of a database: for dashboards, and for questions about many runs."""
