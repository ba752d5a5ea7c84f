"""The embedded engine: one process, one commit log, everything else derived from it.

The event loop's thread owns all tables and the tail of the log; work that may block runs beside it
in lanes (`runner.py`) and hands its result back. `local_store.py`, with `reader.py` and
`offset_commits.py`, is the bridge to asyncio; nothing else here knows that there is one.
"""
