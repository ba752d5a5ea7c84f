"""EscrowMQ as it is installed: the `escrowmq` command, and the service's packages in `_service`.

The packages have names that many projects use (`app`, `storage`). In `_service` no project finds
them, nor is overwritten by them; only the command puts that folder on its path. A project imports
`escrowmq_client` and `pytest_escrowmq`, which are distributions of their own.
"""
