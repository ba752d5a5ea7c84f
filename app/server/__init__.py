"""The server: HTTP/1.1 connections, and what answers the requests that come over them."""
