"""The name service: which nodes there are, and where each topic is."""
