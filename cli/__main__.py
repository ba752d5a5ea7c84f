"""`python -m cli` is `escrowmq`, for whoever has to name this very interpreter."""

from cli.main import main

main()
