"""`python -m cli` is `escrowmq`, for a caller that must name this very interpreter."""

from cli.main import main

main()
