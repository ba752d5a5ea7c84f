"""The OpenAPI document, made of the table of operations and the structs of its schemas."""
