"""The operations as an ASGI application: its middleware, its routes."""
