"""The way out: which messages a consumer is handed, and what becomes of them."""
