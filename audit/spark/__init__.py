"""The log in Spark: data sources, tables, a session."""
