"""A verification of all files of a store, as one walk in small steps.

The log is read once, and queues and key index are compared with it on the way.
"""

from collections.abc import Generator
from pathlib import PurePath

from storage.files.vfs import Vfs
from storage.local.verify import scope as scopes
from storage.local.verify import side_files
from storage.local.verify.filled import filled
from storage.local.verify.index_pass import IndexPass
from storage.local.verify.log_pass import LogWalk, Piece
from storage.local.verify.queue_pass import QueuePass
from storage.local.verify.scope import Scope
from storage.store_status import VerifyStep

WINDOW_BYTES = 4 << 20


class StoreVerification:
    """One walk over all files of a store.

    Reads through handles of its own and owns nothing of the store: any thread may run the steps.
    """

    def __init__(
        self, vfs: Vfs, root: PurePath, *, is_running: bool, window_bytes: int = WINDOW_BYTES
    ) -> None:
        """`is_running`: a service or a broker owns the store meanwhile.

        May block. Raises OSError.
        """
        self._vfs = vfs
        self._scope = scopes.look(filled(vfs), root, is_running=is_running)
        self._window_bytes = window_bytes
        self.total_bytes = _log_bytes(self._scope) + side_files.total_bytes(self._scope)

    def steps(self) -> Generator[VerifyStep, None, None]:
        yield from side_files.verify(self._scope)
        queues, index = QueuePass(self._scope), IndexPass(self._scope)
        self.total_bytes += index.total_bytes
        try:
            of_log = self._scope._replace(vfs=self._vfs)
            for piece in LogWalk(of_log, window_bytes=self._window_bytes).pieces():
                yield _step_of(piece)
                for name in queues.feed(piece):
                    yield VerifyStep(0, name)
                for name, read_bytes in index.feed(piece):
                    yield VerifyStep(read_bytes, name, tuple(index.take_findings()))
            for name, findings in queues.finish():
                yield VerifyStep(0, name, tuple(findings))
            for name, read_bytes in index.finish():
                yield VerifyStep(read_bytes, name, tuple(index.take_findings()))
            yield VerifyStep(0, "", tuple(index.take_findings()))
        finally:
            queues.close()
            index.close()


def _step_of(piece: Piece) -> VerifyStep:
    return VerifyStep(
        piece.read_bytes,
        piece.path,
        () if piece.finding is None else (piece.finding,),
        piece.searched_bytes,
    )


def _log_bytes(scope: Scope) -> int:
    """Offset up to which the log was durable; the log of a stopped store may continue after it."""
    if not scope.segments:
        return 0
    end = scope.segments[-1].end
    return max(0, min(scope.durable_end or end, end) - scope.segments[0].begin)
