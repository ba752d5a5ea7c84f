"""The owner's thread, the lanes beside it, and the timers of both."""
