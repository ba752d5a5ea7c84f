"""Files at a path or a URI, and Parquet in them."""
