"""Errors that have been answered, and what they keep in memory."""


def drop_frames(error: BaseException) -> None:
    """Let go of the frames that an error came through, once it has been answered and logged.

    They hold the request's body. One of them that holds the error, or a future with it, is a cycle:
    the body would wait for the garbage collector, and a client that is refused again and again
    would take hundreds of megabytes meanwhile.
    """
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            errors += (one.__cause__, one.__context__)
