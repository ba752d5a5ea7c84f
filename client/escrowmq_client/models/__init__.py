"""Models of requests and responses, in files named after the tags of the OpenAPI document."""
