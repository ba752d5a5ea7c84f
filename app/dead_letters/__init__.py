"""Dead letters of a consumer group."""
