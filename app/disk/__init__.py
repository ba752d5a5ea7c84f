"""The disk of the store: figures of the kernel and of the service, and a diagnosis in words."""
