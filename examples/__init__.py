"""Examples: programs that use the service as any other program would, over HTTP."""
